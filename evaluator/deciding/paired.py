"""The answers of a base and a checkpoint to their common items. The gate's item-based criteria use nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.drops import floor_of
from evaluator.metrics.inputs import ALL, Comparison, Inputs
from evaluator.metrics.intervals import Floats, ItemNumbers

Flags = npt.NDArray[np.bool_]
UNKNOWN = ""  # the language of a planned item without any record


@dataclass(frozen=True, eq=False, kw_only=True)
class Paired:
    """One entry per item: the base's and the checkpoint's open (`said`) and choice answers (`picked`).

    An answer is 1.0 if right, 0.0 if wrong, NaN without a judgement. The flags `open` and `choice` mark the items that
    this probe was to judge.
    """

    languages: npt.NDArray[np.object_]
    contexts: ItemNumbers
    base_said: Floats
    said: Floats
    base_picked: Floats
    picked: Floats
    open: Flags
    choice: Flags
    floor: float = 0.0  # the accuracy of guessing

    def at(self, rows: ItemNumbers) -> Paired:
        """The items of these rows, in this order; rows may repeat."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        chosen: dict[str, Any] = {name: each[rows] for name, each in values.items() if isinstance(each, np.ndarray)}
        return replace(self, **chosen)

    def of(self, language: str) -> Paired:
        """The items of one language, or of all."""
        return self if language == ALL else self.at(np.flatnonzero(self.languages == language))

    @cached_property
    def spoken(self) -> list[str]:
        """The known languages, sorted."""
        return sorted({str(each) for each in self.languages} - {UNKNOWN})


def paired_of(inputs: Inputs, comparison: Comparison, planned: int | None = None) -> Paired:
    """The outcomes of a checkpoint and its base in the open format. `planned`: the items that the run was to judge;
    None: the items that either side has records for."""
    subject = comparison.subject
    own = inputs.outcomes_of(subject.checkpoint, subject.task)
    base = inputs.outcomes_of(subject.base or "", subject.task)
    numbers = own["item"].to_numpy(np.intp)
    alone = np.setdiff1d(base["item"].to_numpy(np.intp), numbers)
    lacking = len(alone) if planned is None else max(0, planned - len(numbers))
    if lacking >= len(alone):
        numbers, lacking = np.concatenate([numbers, alone]), lacking - len(alone)
    asked = inputs.asked(subject.task).set_index("item").loc[numbers].reset_index()
    own, base = (each.set_index("item").reindex(numbers) for each in (own, base))
    sides = {"": own, "base_": base}
    answers = {
        f"{side}{word}": np.append(_floats(frame[column]), np.full(lacking, np.nan))
        for side, frame in sides.items()
        for word, column in (("said", "produced"), ("picked", "recognised"))
    }
    contexts = inputs.contexts_of(subject.task, asked)
    options = base[base["options"].notna()]
    return Paired(
        languages=np.append(asked["language"].to_numpy(object), np.full(lacking, UNKNOWN, dtype=object)),
        contexts=np.append(contexts, contexts.max(initial=-1) + 1 + np.arange(lacking)),
        open=_due(own, base, "greedy", lacking),
        choice=_due(own, base, "choice", lacking),
        floor=floor_of(options, "choice"),
        **answers,
    )


def _floats(column: pd.Series) -> Floats:
    return np.asarray(column.astype("Float64").to_numpy(np.float64, na_value=np.nan))


def _due(own: pd.DataFrame, base: pd.DataFrame, probe: str, lacking: int) -> Flags:
    """The items that the probe was to judge: all except those that both sides excluded; none if a side lacks the
    probe."""
    statuses = [side[f"{probe}_status"] for side in (own, base)]
    if any(status.isna().all() for status in statuses):
        return np.zeros(len(own) + lacking, dtype=bool)
    excluded = np.logical_and.reduce([(status == "excluded").fillna(False).to_numpy(bool) for status in statuses])
    return np.append(~excluded, np.ones(lacking, dtype=bool))
