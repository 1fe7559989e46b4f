"""Table `perplexity`: of any text, per checkpoint: the metric that looks fine while answers are no longer said.

Perplexity is exp(summed negative log-likelihood / number of predicted tokens) over all windows of a text task. The base
is read on the windows that both were asked; intervals resample windows, jointly for all checkpoints.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import ALL, ITEM, SETTING, Inputs, Row, numbers, table_frame, truth

_COUNTS = ("n", "excluded", "engine_error", "tokens")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_COUNTS,
    *("perplexity", "perplexity_low", "perplexity_high", "perplexity_dense"),
    *("perplexity_ratio", "perplexity_ratio_low", "perplexity_ratio_high", "reason"),
)


def perplexity(inputs: Inputs) -> pd.DataFrame:
    """The table: one row per checkpoint and text; `n` counts windows, `tokens` those that were predicted."""
    return table_frame([_row(inputs, setting) for setting in inputs.readers], COLUMNS, _COUNTS)


def first_readings(inputs: Inputs) -> dict[str, Row]:
    """For each checkpoint its own and its base's perplexity on the first text, as columns of the ladder."""
    found: dict[str, Row] = {}
    for row in (_row(inputs, setting) for setting in inputs.readers):
        told = {name: row.get(name) for name in ("perplexity", "perplexity_dense")}
        found.setdefault(row["checkpoint"], told | {"perplexity_task": row["task"]})
    return found


def _row(inputs: Inputs, setting: Row) -> Row:
    windows = _windows(inputs, setting["checkpoint"], setting["task"])
    done = windows[windows["nll"].notna()]
    status = windows["perplexity_status"]
    row: Row = {**setting, "language": ALL, "n": len(done)}
    row |= {name: int((status == name).sum()) for name in ("excluded", "engine_error")}
    if done.empty:
        return row | {"reason": "no window was measured"}
    resampler = inputs.resampler(setting["task"])
    nll, tokens = resampler.means(numbers(done), truth(done["nll"]), truth(done["predicted_tokens"]))
    row |= {"tokens": int(done["predicted_tokens"].sum()), "perplexity": _perplexity(done)}
    row["perplexity_low"], row["perplexity_high"] = resampler.interval(numbers(done), np.exp(nll / tokens))
    if setting["base"] is None:
        return row
    base = _windows(inputs, setting["base"], setting["task"])
    both = done.merge(base[base["nll"].notna()], on=list(ITEM), suffixes=("", "_dense"))
    if both.empty:
        return row | {"reason": f"base {setting['base']!r} was not measured on this text"}
    row["perplexity_dense"] = _perplexity(both, "_dense")
    row["perplexity_ratio"] = _perplexity(both) / row["perplexity_dense"]
    names = [f"{name}{side}" for side in ("", "_dense") for name in ("nll", "predicted_tokens")]
    own, own_tokens, dense, dense_tokens = resampler.means(numbers(both), *(truth(both[name]) for name in names))
    draws = np.exp(own / own_tokens - dense / dense_tokens)
    row["perplexity_ratio_low"], row["perplexity_ratio_high"] = resampler.interval(numbers(both), draws)
    return row


def _windows(inputs: Inputs, checkpoint: str, task: str) -> pd.DataFrame:
    every = inputs.compact
    asked = every[(every["checkpoint"] == checkpoint) & (every["task"] == task) & every["perplexity_status"].notna()]
    return asked[[*ITEM, "perplexity_status", "nll", "predicted_tokens"]].drop_duplicates("item")


def _perplexity(windows: pd.DataFrame, side: str = "") -> float:
    return float(np.exp(windows[f"nll{side}"].sum() / windows[f"predicted_tokens{side}"].sum()))
