"""Table `pr_gap`: does producing an answer degrade more than recognising it?

    Delta_PR = d_open - d_choice,   d = (acc_dense - acc_pruned) / (acc_dense - floor)

(The Benchmark Illusion, Eq. 1.) Both drops are taken on the same items: those on which both probes were measured in
both checkpoints. Undefined, with the reason, where dense accuracy is at or under the floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
    MINUS,
    PERCENTAGE,
    RATIO,
    REASON,
    SHARE,
    SUBJECT,
    Column,
    Row,
    columns_of,
)
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.draws import Kinds, intervals, over_languages
from evaluator.metrics.drops import CORRECT, headroom, normalised, over_headroom
from evaluator.metrics.figure import Dots, Figure, Heat, Series
from evaluator.metrics.inputs import ALL, MEAN, SIDES, Comparison, Inputs, measured_in_both, slices
from evaluator.metrics.intervals import Floats
from evaluator.metrics.measures import bounds
from evaluator.metrics.table import Table

_MEANS = ("open_dense", "open_pruned", "open_floor", "choice_dense", "choice_pruned", "choice_floor")
_AVERAGED = ("open_dense", "open_pruned", "d_open", "choice_dense", "choice_pruned", "choice_floor", "d_choice")


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint: pooled over items (`all`), as the mean over languages (`mean`), and for each language."""
    for each in inputs.comparisons().values():
        status = each.outcomes[[f"{probe}_status_{side}" for probe in CORRECT for side in SIDES]].notna()
        if not each.reason and not status.any(axis=0).all():
            needs = "needs the probes greedy and choice"
            yield {**each.subject.row, "language": ALL, "n": 0, "reason": needs}
            continue
        pooled, *by_language = [
            _gap(inputs, each, items, language) for language, items in slices(each.outcomes, each.languages)
        ]
        yield pooled
        if by_language:
            yield _mean_gap(inputs, each, pooled, by_language)
        yield from by_language


def delta_pr_of(*means: Floats) -> Floats:
    """Both accuracies and the floor of open, then of choice."""
    return np.asarray(normalised(*means[:3]) - normalised(*means[3:]))


def _values(items: pd.DataFrame) -> tuple[list[Floats], Kinds]:
    """What `delta_pr_of` takes, as a number per item, and the kinds of items that there may be."""
    (opened, open_kinds), (chosen, choice_kinds) = (headroom(items, probe) for probe in CORRECT)
    return [*opened, *chosen], [(*one, *other) for one, other in product(open_kinds, choice_kinds)]


def _gap(inputs: Inputs, comparison: Comparison, items: pd.DataFrame, language: str) -> Row:
    both = measured_in_both(items, "greedy", "choice")
    counts = comparison.counts(language, "greedy", "choice")
    row: Row = {**comparison.subject.row, "language": language, "n": len(both), **counts}
    if both.empty:
        return row | {"reason": comparison.reason or "no item is measured with both probes in both checkpoints"}
    values, kinds = _values(both)
    means = [float(each.mean()) for each in values]
    row |= dict(zip(_MEANS, means, strict=True)) | {"languages": int(both["language"].nunique())}
    del row["open_floor"]  # it is 0
    reasons = []
    for name, probe, (dense, pruned, floor) in (("d_open", "greedy", means[:3]), ("d_choice", "choice", means[3:])):
        row[name], reason = over_headroom(dense - pruned, dense, floor)
        reasons.append(reason and f"{probe}: {reason}")
    row["reason"] = joined_reasons(*reasons)
    if not any(reasons):
        row["delta_pr"] = row["d_open"] - row["d_choice"]
        contexts = inputs.contexts_of(comparison.subject.task, both)
        row |= bounds("delta_pr", *intervals(delta_pr_of, values, contexts, kinds))
    return row


def _mean_gap(inputs: Inputs, comparison: Comparison, pooled: Row, by_language: Sequence[Row]) -> Row:
    """Delta_PR as the unweighted mean of the languages in which it is defined."""
    defined = [row for row in by_language if row.get("delta_pr") is not None]
    undefined = [str(row["language"]) for row in by_language if row.get("delta_pr") is None]
    row: Row = {
        **comparison.subject.row,
        "language": MEAN,
        "languages": len(defined),
        "n": sum(each["n"] for each in defined),
        "reason": joined_reasons(comparison.reason, f"undefined in: {', '.join(undefined)}" if undefined else None),
    }
    row |= {name: pooled.get(name) for name in ("excluded", "engine_error", "unpaired")}
    if not defined:
        return row
    row |= {name: float(np.mean([each[name] for each in defined])) for name in (*_AVERAGED, "delta_pr")}
    both = comparison.measured("greedy", "choice")
    both = both[both["language"].isin([each["language"] for each in defined])]
    values, kinds = _values(both)
    mean, parts, shared = over_languages(delta_pr_of, values, both["language"], kinds)
    contexts = inputs.contexts_of(comparison.subject.task, both)
    return row | bounds("delta_pr", *intervals(mean, parts, contexts, shared))


TABLE = Table(
    name="pr_gap",
    title="Does producing suffer more than recognising?",
    reading=(
        "Delta_PR is the drop of open minus the drop of choice, each relative to its headroom. Above zero, answers "
        "became harder to say than to recognise; at or below zero, recognition suffers at least as much."
    ),
    needs="the probes greedy and choice on a checkpoint and its base",
    columns=(
        *SUBJECT,
        LANGUAGE,
        *columns_of(COUNT, "n", "excluded", "engine_error", "unpaired", "languages"),
        *columns_of(PERCENTAGE, "open_dense", "open_pruned"),
        Column("d_open", RATIO, "d open"),
        *columns_of(PERCENTAGE, "choice_dense", "choice_pruned"),
        Column("choice_floor", SHARE),
        Column("d_choice", RATIO),
        Column("delta_pr", RATIO, "Δ PR", interval=True),
        REASON,
    ),
    compute=_rows,
    figure=Figure(
        (
            Dots(
                "Delta_PR = d_open - d_choice",
                (
                    Series("delta_pr", "mc_only", "pooled over items", shift=-0.12),
                    Series("delta_pr", "mc_only", "mean over languages", {"language": MEAN}, 0.12, hollow=True),
                ),
                "changes",
                legend=4,
            ),
            Heat(
                "Delta_PR by language",
                "delta_pr",
                "mc_only",
                width=1.15,
                negative="negative",
                text=lambda value: f"{value:+.2f}".replace("-", MINUS),
            ),
        ),
        rows=lambda frame: frame[frame.groupby(["task", "checkpoint"])["delta_pr"].transform("count") > 0],
    ),
)
