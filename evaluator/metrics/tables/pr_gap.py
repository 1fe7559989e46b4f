"""Table `pr_gap`: does producing an answer degrade more than recognising it?

    Delta_PR = d_open - d_choice,   d = (acc_dense - acc_pruned) / (acc_dense -
    floor)

(The Benchmark Illusion, Eq. 1.) Both drops are on the same items: those with both
probes measured in both checkpoints. If dense accuracy is at or under the floor,
Delta_PR is undefined, with the reason."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

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
from evaluator.metrics.exclusions import joined_reasons
from evaluator.metrics.fates import headroom, normalised, over_headroom
from evaluator.metrics.inputs import ALL, MEAN, Comparison, Inputs, Part, statuses_of
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import bounds
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


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint: pooled over items (`all`), as the mean over languages
    (`mean`), and for each language."""
    for comparison in inputs.comparisons().values():
        ran = comparison.outcomes[statuses_of(*_PROBES)].notna().any(axis=0)
        if not comparison.reason and not ran.all():
            reason = "needs the probes greedy and choice"
            row = {"language": ALL, "n": 0, "reason": reason}
            yield comparison.subject.row | row
            continue
        parts = comparison.parts(comparison.measured(*_PROBES))
        pooled, *by_language = [_gap(part) for part in parts]
        yield pooled
        if by_language:
            yield _mean_gap(comparison, pooled, by_language)
        yield from by_language


def delta_pr_of(*means: Floats) -> Floats:
    """Delta_PR from the means: both accuracies and the floor of open, then of
    choice."""
    return np.asarray(normalised(*means[:3]) - normalised(*means[3:]))


def _values(items: pd.DataFrame) -> tuple[list[Floats], Kinds]:
    """The arguments of `delta_pr_of`, as a number per item, and the possible kinds
    of items."""
    said, kinds_of_said = headroom(items, "greedy")
    picked, kinds_of_picked = headroom(items, "choice")
    kinds = [(*one, *other) for one in kinds_of_said for other in kinds_of_picked]
    return [*said, *picked], kinds


def _gap(part: Part) -> Row:
    items, comparison = part.items, part.compared
    row = part.row | {"n": len(items)} | comparison.counts(part.language, *_PROBES)
    if items.empty:
        none = "no item is measured with both probes in both checkpoints"
        return row | {"reason": comparison.reason or none}
    values, kinds = _values(items)
    means = [float(each.mean()) for each in values]
    row["languages"] = int(items["language"].nunique())
    row["open_dense"], row["open_pruned"], _ = means[:3]  # the floor is 0
    row["choice_dense"], row["choice_pruned"], row["choice_floor"] = means[3:]
    reasons = []
    for name, probe, (dense, pruned, floor) in (
        ("d_open", "greedy", means[:3]),
        ("d_choice", "choice", means[3:]),
    ):
        row[name], reason = over_headroom(dense - pruned, dense, floor)
        reasons.append(reason and f"{probe}: {reason}")
    row["reason"] = joined_reasons(*reasons)
    if not row["reason"]:
        row["delta_pr"] = row["d_open"] - row["d_choice"]
        row |= bounds("delta_pr", *intervals(delta_pr_of, values, items, kinds))
    return row


def _mean_gap(comparison: Comparison, pooled: Row, by_language: Sequence[Row]) -> Row:
    """Delta_PR as the unweighted mean of the languages with a defined one."""
    defined, undefined = [], []
    for row in by_language:
        if row.get("delta_pr") is None:
            undefined.append(row["language"])
        else:
            defined.append(row)
    reason = f"undefined in: {', '.join(undefined)}" if undefined else None
    mean: Row = {
        **comparison.subject.row,
        "language": MEAN,
        "languages": len(defined),
        "n": sum(each["n"] for each in defined),
        "reason": joined_reasons(comparison.reason, reason),
    }
    for name in ("excluded", "engine_error", "unpaired"):
        mean[name] = pooled[name]
    if not defined:
        return mean
    for name in _AVERAGED:
        mean[name] = float(np.mean([each[name] for each in defined]))
    items = comparison.measured(*_PROBES)
    items = items[~items["language"].isin(undefined)]
    values, kinds = _values(items)
    found = language_intervals(delta_pr_of, values, items, kinds)
    return mean | bounds("delta_pr", *found)


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
    title="Does producing suffer more than recognising?",
    reading=(
        "Delta_PR is the drop of open minus the drop of choice, each relative to its"
        " headroom. Above zero, answers became harder to say than to recognise; at or"
        " below zero, recognition suffers at least as much."
    ),
    needs="the probes greedy and choice on a checkpoint and its base",
    columns=(
        *BY_LANGUAGE,
        *COUNTED,
        *COUNT("unpaired", "languages"),
        *PERCENTAGE("open_dense", "open_pruned"),
        Column("d_open", RATIO, "d open"),
        *PERCENTAGE("choice_dense", "choice_pruned"),
        *SHARE("choice_floor"),
        *RATIO("d_choice"),
        Column("delta_pr", RATIO, "Delta_PR", interval=True),
    ),
    compute=_rows,
    figure=(
        Dots("Delta_PR = d_open - d_choice", _TWICE, "changes"),
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
