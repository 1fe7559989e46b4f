"""Table `pr_gap`: does producing an answer degrade more than recognising it?

    Delta_PR = d_open - d_choice,   d = (acc_dense - acc_pruned) / (acc_dense - floor)

(The Benchmark Illusion, Eq. 1.) Both drops are taken on the same items: those on which both probes were measured in
both checkpoints. Undefined, with the reason, where dense accuracy is at or under the floor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    COUNT,
    LANGUAGE,
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
from evaluator.metrics.drops import CORRECT, drop_of
from evaluator.metrics.inputs import ALL, MEAN, SIDES, Comparison, Inputs, measured_in_both, slices
from evaluator.metrics.intervals import Floats, nan_mean, percentile_interval
from evaluator.metrics.measures import bounds, item_numbers
from evaluator.metrics.table import Table

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
        yield pooled[0]
        if by_language:
            yield _mean_gap(each, pooled[0], by_language)
        yield from (row for row, _ in by_language)


def _gap(inputs: Inputs, comparison: Comparison, items: pd.DataFrame, language: str) -> tuple[Row, Floats]:
    """A row, and the bootstrap draws of its Delta_PR."""
    both = measured_in_both(items, "greedy", "choice")
    counts = comparison.counts(language, "greedy", "choice")
    row: Row = {**comparison.subject.row, "language": language, "n": len(both), **counts}
    if both.empty:
        why = comparison.reason or "no item is measured with both probes in both checkpoints"
        return row | {"reason": why}, np.array([])
    resampler = inputs.resampler(comparison.subject.task)
    opened, chosen = drop_of(resampler, both, "greedy"), drop_of(resampler, both, "choice")
    row |= {
        "languages": int(both["language"].nunique()),
        "open_dense": opened.dense,
        "open_pruned": opened.pruned,
        "d_open": opened.normal,
        "choice_dense": chosen.dense,
        "choice_pruned": chosen.pruned,
        "choice_floor": chosen.floor,
        "d_choice": chosen.normal,
        "reason": joined_reasons(opened.reason, chosen.reason),
    }
    draws = opened.normal_draws - chosen.normal_draws
    if opened.normal is not None and chosen.normal is not None:
        row["delta_pr"] = opened.normal - chosen.normal
        row |= bounds("delta_pr", resampler.interval(item_numbers(both), draws))
    return row, draws


def _mean_gap(comparison: Comparison, pooled: Row, by_language: Sequence[tuple[Row, Floats]]) -> Row:
    """Delta_PR as the unweighted mean of the languages in which it is defined."""
    defined = [(row, draws) for row, draws in by_language if row.get("delta_pr") is not None]
    undefined = [str(row["language"]) for row, _ in by_language if row.get("delta_pr") is None]
    row: Row = {
        **comparison.subject.row,
        "language": MEAN,
        "languages": len(defined),
        "n": sum(each["n"] for each, _ in defined),
        "reason": joined_reasons(comparison.reason, f"undefined in: {', '.join(undefined)}" if undefined else None),
    }
    row |= {name: pooled.get(name) for name in ("excluded", "engine_error", "unpaired")}
    if not defined:
        return row
    row |= {name: float(np.mean([each[name] for each, _ in defined])) for name in (*_AVERAGED, "delta_pr")}
    if all(each["delta_pr_low"] is not None for each, _ in defined):
        row |= bounds("delta_pr", percentile_interval(nan_mean([draws for _, draws in defined])))
    return row


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
)
