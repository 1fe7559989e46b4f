"""Table `flips`: how many answers changed, whatever the accuracy did (Dutta et al., arXiv 2407.09141).

A flip is an item that was right in the base and is wrong here, or the reverse. Accuracy sees their difference only. An
item that is wrong in both, with another wrong answer, is a column of its own. Answers are compared as grading compares
texts (greedy), or by the option that scored highest (choice).

`margin` splits the pooled items into thirds by how sure the base was. greedy: the mean log-probability of the tokens of
the base's answer; choice: by how much the score of the gold option and the best other one differ, in nats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MCNEMAR,
    NATS,
    PERCENTAGE,
    REASON,
    SUBJECT,
    TEXT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.drops import CORRECT, UNPAIRED, sides_of, why_unpaired
from evaluator.metrics.figure import Bars, Figure
from evaluator.metrics.inputs import ALL, Comparison, Inputs, slices
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import as_floats, paired_p, rate
from evaluator.metrics.table import Holm, Lack, Table

THIRDS = ("lowest", "middle", "highest")
KINDS = ("right_to_wrong", "wrong_to_right", "wrong_to_other")
_ANSWER = {"greedy": "answer_said", "choice": "picked"}  # what says which answer it was


@dataclass(frozen=True, eq=False)
class _Paired:
    """One probe of a checkpoint and its base, on the items that both measured."""

    inputs: Inputs
    comparison: Comparison
    probe: str

    def row(self, language: str, items: pd.DataFrame) -> Row:
        row: Row = {**self.comparison.subject.row, "language": language, "probe": self.probe, "margin": ALL}
        row |= {"n": len(items), **self.comparison.counts(language, self.probe)}
        reason = self.comparison.reason or (None if len(items) else UNPAIRED)
        row["reason"] = joined_reasons(reason, why_unpaired(self.comparison, language, self.probe))
        return row | self._changes(items)

    def thirds(self, items: pd.DataFrame) -> Iterator[Row]:
        margins = _margins(items, self.probe)
        known = items[np.isfinite(margins)]
        margins = margins[np.isfinite(margins)]
        if len(known) < len(THIRDS):
            return
        order = np.argsort(margins, kind="stable")
        for name, rows in zip(THIRDS, np.array_split(order, len(THIRDS)), strict=True):
            row: Row = {**self.comparison.subject.row, "language": ALL, "probe": self.probe, "margin": name}
            row |= {"n": len(rows), "margin_from": margins[rows].min(), "margin_to": margins[rows].max()}
            yield row | self._changes(known.iloc[np.sort(rows)])

    def _changes(self, items: pd.DataFrame) -> Row:
        dense, pruned = sides_of(items, CORRECT[self.probe])
        before, after = sides_of(items, _ANSWER[self.probe])
        changed = (dense > pruned, dense < pruned, (dense + pruned == 0) & (before != after))
        flags = dict(zip(KINDS, (as_floats(each) for each in changed), strict=True))
        contexts = self.inputs.contexts_of(self.comparison.subject.task, items)
        row: Row = {name: int(each.sum()) for name, each in flags.items()}
        row |= {"flips": int((dense != pruned).sum()), "mcnemar_p": paired_p(dense, pruned)}
        for name, each in {"flip": as_floats(dense != pruned), **flags}.items():
            row |= rate(f"{name}_rate", each, contexts)
        return row


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled, in thirds by the base's margin, and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if not comparison.tells_of(probe):
                continue
            paired, here = _Paired(inputs, comparison, probe), comparison.measured(probe)
            languages = comparison.languages
            pooled, *by_language = [paired.row(language, items) for language, items in slices(here, languages)]
            yield from (pooled, *paired.thirds(here), *by_language)


def _margins(items: pd.DataFrame, probe: str) -> Floats:
    if probe == "choice":
        return np.abs(as_floats(items["choice_margin_dense"]))
    return as_floats(items["answer_logprob_dense"]) / as_floats(items["answer_tokens_dense"])


_PAINTS = {"right_to_wrong": ("lost", 1.0), "wrong_to_right": ("kept", 1.0), "wrong_to_other": ("muted", 0.35)}

TABLE = Table(
    name="flips",
    title="How many answers changed?",
    reading=(
        "Flips are items that changed from right to wrong, or from wrong to right. Accuracy shows only their "
        "difference. wrong to other: wrong in both checkpoints, with another answer. margin splits the pooled items "
        "into thirds by the base's confidence in its answer, in nats. Flips are harmless noise only if they stay in "
        "the lowest third."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(TEXT, "probe", "margin"),
        Column("margin_from", NATS),
        Column("margin_to", NATS),
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired", "flips", *KINDS),
        Column("flip_rate", PERCENTAGE, interval=True),
        *(Column(f"{name}_rate", PERCENTAGE, name.replace("_", " "), interval=True) for name in KINDS),
        *MCNEMAR,
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Bars(
                title,
                {f"{name}_rate": (name.replace("_", " "), *paint) for name, paint in _PAINTS.items()},
                {"probe": probe},
                legend=4 * (probe == "greedy"),
            )
            for probe, title in (("greedy", "Open answers that changed, %"), ("choice", "Choices that changed, %"))
        ),
        rows=lambda frame: frame[(frame["margin"] == ALL) & (frame["n"] > 0)],
    ),
    corrections=(Holm(("task", "language", "probe", "margin")),),
    lacks=(Lack("probe", "the probe greedy", "greedy"), Lack("probe", "the probe choice", "choice")),
)
