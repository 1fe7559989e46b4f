"""Table `distractors`: does recognition depend on whether the wrong options are of the answer's kind?

A year among three names gives itself away. The kind of an option is that of `evaluator.tasks.answer_types`; the records
of `choice` hold each option's text, so that a run of any age and items with options of their own have kinds too.

    all, some, none    of the item's distractors are of the gold option's kind

There are rows only where a checkpoint has items of several kinds. `drop` is the base's accuracy minus the checkpoint's
on the items of a kind that both measured. Without scores an item has no kind: `excluded` and `engine_error` count those
of the whole language in each of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons, measured
from evaluator.metrics.drops import sides_of
from evaluator.metrics.inputs import Comparison, Inputs, slices
from evaluator.metrics.measures import as_floats, paired_difference, rate
from evaluator.metrics.table import Holm, Table

_KINDS = ("all", "some", "none")


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.checkpoints:
        items = inputs.outcomes_of(subject.checkpoint, subject.task)
        found = set(_kind_of(items["same_kind"], items["options"]))
        kinds = [kind for kind in _KINDS if kind in found]
        if len(kinds) < 2:
            continue
        comparison = inputs.comparisons().get(subject.key)
        for language, of_language in slices(items, inputs.languages(subject.task)):
            done, counts = measured(of_language, "choice")
            for kind in kinds:
                here = done[_kind_of(done["same_kind"], done["options"]) == kind]
                if here.empty:
                    continue
                row = {**subject.row, "language": language, "same_kind": kind, **counts, "n": len(here)}
                row |= rate("accuracy", as_floats(here["recognised"]), inputs.contexts_of(subject.task, here))
                if comparison is not None:
                    row |= _drop(inputs, comparison, language, kind)
                    row["reason"] = joined_reasons(comparison.reason, row["reason"])
                yield row


def _drop(inputs: Inputs, comparison: Comparison, language: str, kind: str) -> Row:
    both = comparison.measured("choice", language=language)
    both = both[_kind_of(both["same_kind_pruned"], both["options_pruned"]) == kind]
    if both.empty:
        return {"n_paired": 0}
    dense, pruned = sides_of(both, "recognised")
    row: Row = {"n_paired": len(both), "base_accuracy": float(dense.mean())}
    contexts = inputs.contexts_of(comparison.subject.task, both)
    return row | paired_difference("drop", (dense, pruned), contexts)


def _kind_of(same: pd.Series, options: pd.Series) -> pd.Series:
    """How many of an item's distractors are of the gold option's kind, in a word; null where nothing was scored."""
    words = pd.Series(np.where(same == 0, "none", np.where(same == options - 1, "all", "some")), index=same.index)
    return words.where(same.notna().to_numpy())


TABLE = Table(
    name="distractors",
    title="Is the answer easier to pick where the other options are of another kind?",
    reading=(
        "Items by how many of their wrong options have the right answer's kind (date, number, name or other): all, "
        "some or none. If accuracy is higher with none than with all, the kind gives answers away. Drop is the "
        "base's accuracy minus the checkpoint's on the same items. Easy options hide a drop that shows with all and "
        "not with none."
    ),
    needs="the probe choice, and items whose wrong options are of the answer's kind to a different extent",
    columns=(
        *SUBJECT,
        LANGUAGE,
        Column("same_kind", TEXT, "wrong options of the answer's kind"),
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        Column("accuracy", PERCENTAGE, interval=True),
        Column("n_paired", COUNT),
        Column("base_accuracy", PERCENTAGE),
        Column("drop", POINTS, interval=True),
        *MCNEMAR,
        REASON,
    ),
    compute=_rows,
    corrections=(Holm(("task", "language", "same_kind")),),
    silent=True,
)
