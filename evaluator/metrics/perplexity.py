"""Table `perplexity`: of any text, per checkpoint: the metric that looks fine while answers are no longer said.

Perplexity is exp(summed negative log-likelihood / number of predicted tokens) over all windows of a text task. The base
is read on the windows that both were asked; intervals resample windows, jointly for all checkpoints.

A checkpoint that read several texts (one for each language, say) has a row `mean` too: the unweighted mean over texts
of log perplexity, and of the log ratio where the base has read the text, as perplexity and ratio again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.counting import joined_reasons, why_left_out
from evaluator.metrics.inputs import ALL, ITEM, MEAN, SETTING, Inputs, Row, numbers, table_frame, truth
from evaluator.metrics.intervals import UNDEFINED, Floats, percentile_interval

_COUNTS = ("n", "excluded", "engine_error", "tokens")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_COUNTS,
    *("perplexity", "perplexity_low", "perplexity_high", "perplexity_dense"),
    *("perplexity_ratio", "perplexity_ratio_low", "perplexity_ratio_high", "reason"),
)


@dataclass(frozen=True, eq=False)
class _Reading:
    """One checkpoint's row on one text, and the draws of log perplexity and of the log ratio to the base, if known."""

    row: Row
    logs: Floats | None = None
    ratios: Floats | None = None


def perplexity(inputs: Inputs) -> pd.DataFrame:
    """The table: one row per checkpoint and text; `n` counts windows, `tokens` those that were predicted."""
    readings = [_reading(inputs, setting) for setting in inputs.readers]
    by_checkpoint: dict[str, list[_Reading]] = {}
    for reading in readings:
        by_checkpoint.setdefault(reading.row["checkpoint"], []).append(reading)
    means = [_mean(each) for each in by_checkpoint.values() if len(each) > 1]
    return table_frame([*(reading.row for reading in readings), *means], COLUMNS, _COUNTS)


def first_readings(inputs: Inputs) -> dict[str, Row]:
    """For each checkpoint its own and its base's perplexity on the first text, as columns of the ladder."""
    found: dict[str, Row] = {}
    for row in (_reading(inputs, setting).row for setting in inputs.readers):
        told = {name: row.get(name) for name in ("perplexity", "perplexity_dense")}
        found.setdefault(row["checkpoint"], told | {"perplexity_task": row["task"]})
    return found


def _reading(inputs: Inputs, setting: Row) -> _Reading:
    windows = _windows(inputs, setting["checkpoint"], setting["task"])
    done = windows[windows["nll"].notna()]
    status = windows["perplexity_status"]
    row: Row = {**setting, "language": ALL, "n": len(done)}
    row |= {name: int((status == name).sum()) for name in ("excluded", "engine_error")}
    row["reason"] = why_left_out(windows, "perplexity")
    if done.empty:
        return _Reading(row | {"reason": joined_reasons("no window was measured", row["reason"])})
    resampler = inputs.resampler(setting["task"])
    nll, tokens = resampler.means(numbers(done), truth(done["nll"]), truth(done["predicted_tokens"]))
    row |= {"tokens": int(done["predicted_tokens"].sum()), "perplexity": _perplexity(done)}
    row["perplexity_low"], row["perplexity_high"] = resampler.interval(numbers(done), np.exp(nll / tokens))
    if setting["base"] is None:
        return _Reading(row, nll / tokens)
    base = _windows(inputs, setting["base"], setting["task"])
    both = done.merge(base[base["nll"].notna()], on=list(ITEM), suffixes=("", "_dense"))
    if both.empty:
        missing = f"base {setting['base']!r} was not measured on this text"
        return _Reading(row | {"reason": joined_reasons(missing, row["reason"])}, nll / tokens)
    row["perplexity_dense"] = _perplexity(both, "_dense")
    row["perplexity_ratio"] = _perplexity(both) / row["perplexity_dense"]
    names = [f"{name}{side}" for side in ("", "_dense") for name in ("nll", "predicted_tokens")]
    own, own_tokens, dense, dense_tokens = resampler.means(numbers(both), *(truth(both[name]) for name in names))
    ratios = own / own_tokens - dense / dense_tokens
    row["perplexity_ratio_low"], row["perplexity_ratio_high"] = resampler.interval(numbers(both), np.exp(ratios))
    return _Reading(row, nll / tokens, ratios)


def _mean(readings: Sequence[_Reading]) -> Row:
    """The mean over the texts of one checkpoint; counts are sums. Texts are resampled each on its own."""
    first = readings[0].row
    row: Row = {name: first[name] for name in ("checkpoint", "base", *SETTING)}
    row |= {"task": f"mean of {len(readings)} texts", "language": MEAN}
    row |= {name: sum(each.row.get(name) or 0 for each in readings) for name in _COUNTS}
    told = []
    for name in ("perplexity", "perplexity_dense", "perplexity_ratio"):
        known = [each for each in readings if each.row.get(name) is not None]
        if not known:
            continue
        row[name] = float(np.exp(np.mean([np.log(each.row[name]) for each in known])))
        if len(known) < len(readings):
            told.append(f"{name} of {len(known)} of {len(readings)} texts")
        if name == "perplexity_dense":
            continue
        draws = [each.logs if name == "perplexity" else each.ratios for each in known]
        whole = all(each.row[f"{name}_low"] is not None for each in known)
        mean = np.mean([each for each in draws if each is not None], axis=0)
        row[f"{name}_low"], row[f"{name}_high"] = percentile_interval(np.exp(mean)) if whole else UNDEFINED
    return row | {"reason": "; ".join(["unweighted mean of log perplexity over texts", *told])}


def _windows(inputs: Inputs, checkpoint: str, task: str) -> pd.DataFrame:
    every = inputs.compact
    asked = every[(every["checkpoint"] == checkpoint) & (every["task"] == task) & every["perplexity_status"].notna()]
    return asked[[*ITEM, "perplexity_status", "perplexity_why", "nll", "predicted_tokens"]].drop_duplicates("item")


def _perplexity(windows: pd.DataFrame, side: str = "") -> float:
    return float(np.exp(windows[f"nll{side}"].sum() / windows[f"predicted_tokens{side}"].sum()))
