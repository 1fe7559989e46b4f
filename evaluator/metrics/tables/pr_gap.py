"""Table `pr_gap`: does saying an answer degrade more than picking it?

    Delta_PR = d_open - d_choice,   d = (acc_dense - acc_pruned) / (acc_dense -
    floor)

(The Benchmark Illusion, Eq. 1.) Both drops are on the same items: those with both
probes measured in both checkpoints. If dense accuracy is at or under the floor,
Delta_PR is undefined, with the reason."""

from collections.abc import Iterator

import numpy as np

from evaluator.metrics.bootstrap import Kinds, intervals, language_intervals
from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    COUNTED,
    MINUS,
    PERCENTAGE,
    RATIO,
    SHARE,
    Column,
    Row,
)
from evaluator.metrics.cuts import Cut
from evaluator.metrics.fates import headroom, normalised, over_headroom
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats
from evaluator.metrics.items import ALL, MEAN, Items, joined_reasons, statuses_of
from evaluator.metrics.measures import Measure, bounds, defined_in
from evaluator.metrics.table import Dots, Heat, Series, Table

_PROBES = ("greedy", "choice")
_AVERAGED = (
    "open_dense",
    "open_pruned",
    "choice_dense",
    "choice_pruned",
    "choice_floor",
    "d_open",
    "d_choice",
    "delta_pr",
)


def delta_pr_of(*means: Floats) -> Floats:
    """Delta_PR from the means: both accuracies and the floor of open, then of
    choice."""
    return np.asarray(normalised(*means[:3]) - normalised(*means[3:]))


def _values(items: Items) -> tuple[list[Floats], Kinds]:
    """The arguments of `delta_pr_of`, as a number per item, and the possible kinds
    of items."""
    said, kinds_of_said = headroom(items, "greedy")
    picked, kinds_of_picked = headroom(items, "choice")
    kinds = [(*one, *other) for one in kinds_of_said for other in kinds_of_picked]
    return [*said, *picked], kinds


class _DeltaPR(Measure):
    def __call__(self, items: Items) -> Row:
        if not len(items):
            return {}
        values, kinds = _values(items)
        means = [float(each.mean()) for each in values]
        row: Row = {"languages": len(items.languages)}
        row["open_dense"], row["open_pruned"], _ = means[:3]  # the floor is 0
        row["choice_dense"], row["choice_pruned"], row["choice_floor"] = means[3:]
        reasons = []
        for name, probe, (base, own, floor) in (
            ("d_open", "greedy", means[:3]),
            ("d_choice", "choice", means[3:]),
        ):
            row[name], reason = over_headroom(base - own, base, floor)
            reasons.append(reason and f"{probe}: {reason}")
        row["reason"] = joined_reasons(*reasons)
        if not row["reason"]:
            row["delta_pr"] = row["d_open"] - row["d_choice"]
            row |= bounds("delta_pr", *intervals(delta_pr_of, values, items, kinds))
        return row

    def over_languages(self, items: Items) -> Row:
        """Delta_PR as the unweighted mean of the languages with a defined one."""
        defined, rows, why = defined_in(self, "delta_pr", items)
        mean: Row = {"n": len(defined), "languages": len(rows), "reason": why}
        if not rows:
            return mean
        for name in _AVERAGED:
            mean[name] = float(np.mean([each[name] for each in rows]))
        values, kinds = _values(defined)
        found = language_intervals(delta_pr_of, values, defined, kinds)
        return mean | bounds("delta_pr", *found)


_CUT = Cut(
    probes=_PROBES,
    both=True,
    measures=(_DeltaPR(),),
    mean=True,
    nothing="no item is measured with both probes in both checkpoints",
)


def _rows(inputs: Inputs) -> Iterator[Row]:
    for subject in inputs.compared:
        both = inputs.of(subject).both
        ran = [both.has(name).any() for name in statuses_of(_PROBES, both=True)]
        if len(both) and not all(ran):
            reason = "needs the probes greedy and choice"
            yield subject.row | {"language": ALL, "n": 0, "reason": reason}
        else:
            yield from _CUT.rows(inputs, subject)


_TWICE = (
    Series("delta_pr", "mc_only", "pooled over items", shift=-0.12),
    Series(
        "delta_pr",
        "mc_only",
        "mean over languages",
        {"language": MEAN},
        0.12,
        hollow=True,
    ),
)

TABLE = Table(
    name="pr_gap",
    title="Does saying suffer more than picking?",
    reading=(
        "Delta_PR is the drop of said minus the drop of picked, each relative to its"
        " headroom. Above zero, answers became harder to say than to pick; at or below"
        " zero, picking suffers at least as much."
    ),
    needs="the probes greedy and choice on a checkpoint and its base",
    columns=(
        *BY_LANGUAGE,
        *COUNTED,
        *COUNT("unpaired", "languages"),
        *PERCENTAGE("open_dense", "open_pruned"),
        *RATIO("d_open"),
        *PERCENTAGE("choice_dense", "choice_pruned"),
        *SHARE("choice_floor"),
        *RATIO("d_choice"),
        Column("delta_pr", RATIO, "Delta_PR", interval=True),
    ),
    compute=_rows,
    figure=(
        Dots("Delta_PR = d said - d picked", _TWICE, "changes"),
        Heat(
            "Delta_PR by language",
            "delta_pr",
            "mc_only",
            width=1.15,
            negative="negative",
            text=lambda value: f"{value:+.2f}".replace("-", MINUS),
        ),
    ),
    plotted=lambda frame: frame[
        frame.groupby(["task", "checkpoint"])["delta_pr"].transform("count") > 0
    ],
)
