"""Table `weak`: which kinds of questions does a checkpoint lose most of, compared with its base?

One accuracy hides where a checkpoint has become weak (compare EvalTree, Zeng et al., arXiv 2503.08893, which finds such
kinds by a model; ours are rules: `evaluator.metrics.kinds`). For every kind, on its items that both checkpoints
measured:

    drop       the base's accuracy minus the checkpoint's
    excess     that drop minus the drop on all other kinds of the same sort: above 0, the kind is hit harder
    mcnemar_p  whether the drop may be chance, exact; holm_p corrects it over all kinds of the checkpoint and probe

Intervals are over contexts. A kind of fewer than 20 items has neither, and its reason says so; where no kind has as
many, there is no table. Sorts that all items share (one language, no contexts) are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    FEW,
    MCNEMAR,
    PERCENTAGE,
    POINTS,
    REASON,
    SUBJECT,
    TEXT,
    Row,
    columns_of,
    few,
)
from evaluator.metrics.drops import CORRECT, sides_of
from evaluator.metrics.figure import Dots, Figure, Series
from evaluator.metrics.inputs import ALL, SIDES, Comparison, Inputs
from evaluator.metrics.kinds import KINDS, kinds_of
from evaluator.metrics.means import Mean
from evaluator.metrics.measures import apart, paired_difference
from evaluator.metrics.table import Holm, Table
from evaluator.store.outcomes import MEASURED

_STATUSES = ("excluded", "engine_error")
_SHOWN = 5  # kinds of a checkpoint and probe, on the page


def _rows(inputs: Inputs) -> Iterator[Row]:
    kinds: dict[str, pd.DataFrame] = {}
    for comparison in inputs.comparisons().values():
        task = comparison.subject.task
        if comparison.reason:
            continue
        if task not in kinds:
            kinds[task] = _kinds(inputs, task)
        sorted_items = comparison.outcomes.merge(kinds[task], on=["language", "item_id"], how="left")
        for probe in CORRECT:
            if comparison.tells_of(probe):
                yield from _Sorted(inputs, comparison, probe, sorted_items).rows()


def _kinds(inputs: Inputs, task: str) -> pd.DataFrame:
    """The kinds of a task's items, under the columns `by <sort>`; of language alone where the run keeps no items."""
    if inputs.items is None or not (inputs.items["task"] == task).any():
        return pd.DataFrame(columns=["language", "item_id"], dtype=object)
    found = kinds_of(inputs.items[inputs.items["task"] == task])
    named = found[[*KINDS[1:]]].rename(columns=_by)
    return named.assign(language=found["language"], item_id=found["item_id"])


def _by(name: str) -> str:
    return f"by {name}"


@dataclass(frozen=True, eq=False)
class _Sorted:
    """One probe of a checkpoint and its base on the items that both were asked, with their kinds."""

    inputs: Inputs
    comparison: Comparison
    probe: str
    items: pd.DataFrame

    def rows(self) -> list[Row]:
        """By sort; within it, the largest drop first."""
        rows: list[Row] = []
        for name in KINDS:
            column = "language" if name == "language" else _by(name)
            if column in self.items and self.items[column].nunique() > 1:
                rows += sorted(self._of_sort(name, self.items[column]), key=_largest_first)
        return rows

    def _of_sort(self, name: str, kind_of: pd.Series) -> Iterator[Row]:
        sides = [self.items[f"{self.probe}_status_{side}"] for side in SIDES]
        excluded, failed = (np.logical_or.reduce([side == status for side in sides]) for status in _STATUSES)
        both = np.logical_and.reduce([side.isin(MEASURED) for side in sides])
        done = self.items[both]
        kinds = sorted(kind_of.dropna().unique())
        if done.empty:
            return
        dense, pruned = sides_of(done, CORRECT[self.probe])
        member_KI = np.stack([(kind_of[both] == kind).to_numpy() for kind in kinds])
        contexts = self.inputs.contexts_of(self.comparison.subject.task, done)
        for at, kind in enumerate(kinds):
            here = (kind_of == kind).to_numpy()
            mine = member_KI[at]
            row: Row = {**self.comparison.subject.row, "probe": self.probe, "by": name, "kind": kind}
            row |= {"n": int(mine.sum()), "excluded": int((excluded & here).sum())}
            row["engine_error"] = int((failed & ~excluded & here).sum())
            if few(row["n"]):
                yield row | {"reason": f"too few items: {row['n']} of the {FEW} that a kind needs"}
                continue
            rest = member_KI.any(axis=0) & ~mine
            row |= {"base_accuracy": float(dense[mine].mean()), "accuracy": float(pruned[mine].mean())}
            row |= paired_difference("drop", (dense[mine], pruned[mine]), contexts[mine])
            if rest.any():
                lost = (Mean((dense - pruned)[these], contexts[these], low=-1.0) for these in (mine, rest))
                row |= apart("excess", *lost)
            yield row


def _largest_first(row: Row) -> float:
    """Kinds with too few items come last."""
    return -float(row.get("drop", -np.inf))


def _weakest(frame: pd.DataFrame) -> pd.DataFrame:
    """The kinds with the largest drops, of each checkpoint and probe."""
    dropped = frame[frame["drop"] > 0]
    groups = dropped.groupby(["task", "checkpoint", "probe"], sort=False)
    return pd.concat([dropped.head(0), *(group.nlargest(_SHOWN, "drop") for _, group in groups)], ignore_index=True)


_PROBES = {"greedy": "open", "choice": "choice"}
_DRAWN = 16  # kinds


def _worst_kinds(frame: pd.DataFrame) -> pd.DataFrame:
    """A row per checkpoint and kind."""
    worst = frame[frame["drop"].notna()].nlargest(_DRAWN, "drop")
    return worst.assign(checkpoint=worst["checkpoint"] + ": " + worst["by"] + ", " + worst["kind"], language=ALL)


TABLE = Table(
    name="weak",
    title="Which kinds of questions does it lose?",
    reading=(
        "Items by rule: language, type and length of the answer, question word, length of the context, and position "
        "of the answer in it. Drop is the base's accuracy minus the checkpoint's on the items of a kind. Excess is "
        "this drop minus the drop on the other kinds of the same sort; it shows where the checkpoint has become "
        "weak. The p values test whether a kind dropped at all. The page shows the largest drops of each "
        "checkpoint; the CSV has all kinds, and names those with too few items."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        *columns_of(TEXT, "probe", "by", "kind"),
        *columns_of(COUNT, "n", "excluded", "engine_error"),
        *columns_of(PERCENTAGE, "base_accuracy", "accuracy"),
        *columns_of(POINTS, "drop", "excess", interval=True),
        *MCNEMAR,
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        tuple(
            Dots(
                title,
                tuple(Series(column, probe, label, {"probe": probe}) for probe, label in _PROBES.items()),
                "points",
                legend=4 * (column == "drop"),
            )
            for column, title in (("drop", "Drop from the base"), ("excess", "More than the other kinds"))
        ),
        rows=_worst_kinds,
    ),
    corrections=(Holm(("task", "checkpoint", "probe")),),
    any_of="drop",
    silent=True,
    page=_weakest,
)
