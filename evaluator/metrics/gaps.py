"""Tables `pr_gap` and `ladder`: does producing an answer degrade more than recognising it?

    Delta_PR = d_open - d_choice,   d = (acc_dense - acc_pruned) / (acc_dense - floor)            (paper, Eq. 1)

with floor 0 for generated formats and 1/K for choice. Both drops are taken on the same items: those on which both
probes were measured in both checkpoints. Undefined, with the reason, where dense accuracy is at or under the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.accuracy import CORRECT, floor_of, normalised
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.inputs import (
    ALL,
    MEAN,
    SETTING,
    Inputs,
    Pair,
    Row,
    correct_for_many,
    measured_in_both,
    numbers,
    paired,
    paired_p,
    pairs,
    slices,
    table_frame,
    truth,
)
from evaluator.metrics.intervals import Floats, Resampler, nan_mean, percentile_interval
from evaluator.metrics.perplexity import first_readings

_GAP_COUNTS = ("n", "excluded", "engine_error", "unpaired", "languages")
GAP_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_GAP_COUNTS,
    *("open_dense", "open_pruned", "d_open", "choice_dense", "choice_pruned", "choice_floor", "d_choice"),
    *("delta_pr", "delta_pr_low", "delta_pr_high", "reason"),
)
LADDER_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "rung"),
    *_GAP_COUNTS,
    *("dense", "pruned", "drop", "drop_low", "drop_high", "mcnemar_p", "holm_p"),
    *("normalised_drop", "normalised_drop_low", "normalised_drop_high"),
    *("perplexity_task", "perplexity_dense", "perplexity", "reason"),
)
RUNGS = {"open": ("open", "greedy"), "shown": ("shown", "greedy"), "choice": ("open", "choice")}


@dataclass(frozen=True, eq=False)
class Drop:
    """One probe's drop on one set of items: point values and bootstrap draws; `normal` is null with a reason."""

    dense: float
    pruned: float
    floor: float
    p: float | None
    normal: float | None
    reason: str | None
    raw_draws: Floats
    normal_draws: Floats

    @property
    def raw(self) -> float:
        return self.dense - self.pruned


def drop_of(resampler: Resampler, items: pd.DataFrame, probe: str) -> Drop:
    """The drop of `probe` on a pair's items, all of them measured on both sides (at least one)."""
    column, names = CORRECT[probe], numbers(items)
    dense, pruned = truth(items[f"{column}_dense"]), truth(items[f"{column}_pruned"])
    floor = floor_of(items, probe, "_dense")
    normal, reason = normalised(float(dense.mean() - pruned.mean()), float(dense.mean()), floor)
    dense_draws, pruned_draws = resampler.means(names, dense, pruned)
    headroom = np.where(dense_draws > floor, dense_draws - floor, np.nan)
    raw_draws = dense_draws - pruned_draws
    return Drop(
        float(dense.mean()), float(pruned.mean()), floor, paired_p(dense, pruned), normal,
        reason and f"{probe}: {reason}", raw_draws, raw_draws / headroom,
    )  # fmt: skip


def pr_gap(inputs: Inputs) -> pd.DataFrame:
    """The table: pooled over items (`all`), as the mean over languages (`mean`), and for each language."""
    rows: list[Row] = []
    for pair in pairs(inputs):
        asked = pair.items[[f"{p}_status_{side}" for p in CORRECT for side in ("dense", "pruned")]].notna()
        if not pair.reason and not asked.any(axis=0).all():
            rows.append({**pair.setting, "language": ALL, "n": 0, "reason": "needs the probes greedy and choice"})
            continue
        by_language: list[tuple[Row, Floats]] = []
        for language, items in slices(pair.items, [] if pair.reason else inputs.languages(pair.task)):
            row, draws = _gap(inputs, pair, items, language)
            if language == ALL:
                rows.append(row)
            else:
                by_language.append((row, draws))
        if by_language:
            rows.append(_mean_gap(pair, rows[-1], by_language))
        rows += [row for row, _ in by_language]
    return table_frame(rows, GAP_COLUMNS, _GAP_COUNTS)


def _gap(inputs: Inputs, pair: Pair, items: pd.DataFrame, language: str) -> tuple[Row, Floats]:
    both = items[measured_in_both(items, "greedy", "choice")]
    counts = pair.counts(language, "greedy", "choice")
    row: Row = {**pair.setting, "language": language, "n": len(both), **counts}
    if both.empty:
        return row | {"reason": pair.reason or "no item is measured with both probes in both checkpoints"}, np.array([])
    resampler = inputs.resampler(pair.task)
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
        low, high = resampler.interval(numbers(both), draws)
        row |= {"delta_pr": opened.normal - chosen.normal, "delta_pr_low": low, "delta_pr_high": high}
    return row, draws


def _mean_gap(pair: Pair, pooled: Row, by_language: Sequence[tuple[Row, Floats]]) -> Row:
    """Delta_PR as the unweighted mean of the languages in which it is defined."""
    defined = [(row, draws) for row, draws in by_language if row.get("delta_pr") is not None]
    left_out = [str(row["language"]) for row, _ in by_language if row.get("delta_pr") is None]
    row: Row = {**pair.setting, "language": MEAN, "languages": len(defined)}
    row |= {name: pooled.get(name) for name in ("excluded", "engine_error", "unpaired")}
    row["n"] = sum(each["n"] for each, _ in defined)
    row["reason"] = joined_reasons(pair.reason, f"undefined in: {', '.join(left_out)}" if left_out else None)
    if not defined:
        return row
    averaged = [name for name in GAP_COLUMNS if name.startswith(("open_", "choice_", "d_")) or name == "delta_pr"]
    row |= {name: float(np.mean([each[name] for each, _ in defined])) for name in averaged}
    if all(each["delta_pr_low"] is not None for each, _ in defined):
        row["delta_pr_low"], row["delta_pr_high"] = percentile_interval(nan_mean([draws for _, draws in defined]))
    return row


def ladder(inputs: Inputs) -> pd.DataFrame:
    """Table `ladder`: the drop of open, shown and choice on the items measured in all the rungs that were asked.

    Perplexity, the metric that hides it all, stands beside them: of the first task of text by name.
    """
    rows: list[Row] = []
    read = first_readings(inputs)
    by_form = {form: paired(inputs, form) for form in ("open", "shown")}
    for key, pair in by_form["open"].items():
        rungs = {
            rung: by_form[form][key]
            for rung, (form, probe) in RUNGS.items()
            if by_form[form][key].items[f"{probe}_status_pruned"].notna().any()
        }
        measured = {rung: each.measured(RUNGS[rung][1]) for rung, each in rungs.items()}
        if not measured:
            rows.append({**pair.setting, "language": ALL, "n": 0, "reason": pair.reason or "no format was asked"})
            continue
        common = set.intersection(*(set(numbers(items).tolist()) for items in measured.values()))
        for rung, items in measured.items():
            shared = items[items["item"].isin(common)]
            asked, probe = rungs[rung], RUNGS[rung][1]
            counts = asked.counts(ALL, probe) | read.get(pair.checkpoint, {})
            rows += [row | counts for row in _rung_rows(inputs, asked, shared, rung, probe)]
    correct_for_many(rows, ("task", "language", "rung"))
    return table_frame(rows, LADDER_COLUMNS, _GAP_COUNTS)


def _rung_rows(inputs: Inputs, pair: Pair, items: pd.DataFrame, rung: str, probe: str) -> list[Row]:
    """The pooled row and the mean over languages of one rung."""
    row: Row = {**pair.setting, "rung": rung, "n": len(items), "languages": int(items["language"].nunique())}
    if items.empty:
        return [row | {"language": ALL, "reason": pair.reason or "no item is measured in every rung"}]
    resampler = inputs.resampler(pair.task)
    pooled = drop_of(resampler, items, probe)
    by_language = [drop_of(resampler, part, probe) for _, part in items.groupby("language", sort=True)]
    defined = [each for each in by_language if each.normal is not None]
    low, high = resampler.interval(numbers(items), pooled.raw_draws)
    first: Row = row | {"language": ALL, "dense": pooled.dense, "pruned": pooled.pruned, "drop": pooled.raw}
    first |= {"drop_low": low, "drop_high": high, "normalised_drop": pooled.normal, "reason": pooled.reason}
    first["mcnemar_p"] = pooled.p
    if pooled.normal is not None:
        low, high = resampler.interval(numbers(items), pooled.normal_draws)
        first |= {"normalised_drop_low": low, "normalised_drop_high": high}
    mean: Row = row | {"language": MEAN, "dense": float(np.mean([each.dense for each in by_language]))}
    mean |= {"pruned": float(np.mean([each.pruned for each in by_language]))}
    mean["drop"] = mean["dense"] - mean["pruned"]
    mean["drop_low"], mean["drop_high"] = percentile_interval(nan_mean([each.raw_draws for each in by_language]))
    if len(defined) < len(by_language):
        mean["reason"] = f"normalised over the {len(defined)} of {len(by_language)} languages where it is defined"
    if defined:
        mean["normalised_drop"] = float(np.mean([each.normal for each in defined]))
        draws = nan_mean([each.normal_draws for each in defined])
        mean["normalised_drop_low"], mean["normalised_drop_high"] = percentile_interval(draws)
    return [first, mean]
