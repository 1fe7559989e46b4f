"""Tables `recovery` and `recovery_seeds`: is the answer anywhere in the beams or the samples?

Beams and samples are asked of the first half of each language's items only, so every rate here, the greedy accuracy
too, is over the items on which the probe was measured. Population `greedy_failures` keeps those that the same
checkpoint's greedy output misses: its rate is what broader decoding wins back.
"""

from __future__ import annotations

import pandas as pd

from evaluator.metrics.inputs import ALL, SETTING, Inputs, Pair, Row, numbers, pairs, rate, slices, table_frame, truth
from evaluator.metrics.intervals import mcnemar_exact
from evaluator.metrics.outcomes import MEASURED

HIT = {"greedy": "produced", "beam": "beam_hit", "sample": "sample_hit"}
EVERYTHING, FAILURES = "all_items", "greedy_failures"

_COUNTS = ("n", "excluded", "engine_error", "hits", "n_paired")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "population", "probe", "tries"),
    *_COUNTS[:-1],
    *("rate", "rate_low", "rate_high", "n_paired", "drop", "drop_low", "drop_high", "mcnemar_p", "reason"),
)
SEED_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "seeds", "n_min", "n_max"),
    *("mean", "lowest", "highest", "reason"),
)


def recovery(inputs: Inputs) -> pd.DataFrame:
    """The table: greedy, beam and sample, over all items and among the checkpoint's own greedy failures."""
    paired = {(pair.task, pair.checkpoint): pair for pair in pairs(inputs)}
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        items = inputs.part(setting["checkpoint"], setting["task"], "open")
        broad = items[items["beam_status"].notna() | items["sample_status"].notna()]
        if broad.empty:
            continue
        for language, part in slices(broad, inputs.languages(setting["task"])):
            for population in (EVERYTHING, FAILURES):
                for probe in HIT:
                    if population == FAILURES and probe == "greedy":
                        continue
                    row = {**setting, "language": language, "population": population, "probe": probe}
                    row |= _measured(part, population, probe)
                    pair = paired.get((setting["task"], setting["checkpoint"]))
                    if pair is not None and population == EVERYTHING:
                        row |= _paired(inputs, pair, language, probe)
                    rows.append(row)
    return table_frame(rows, COLUMNS, (*_COUNTS, "tries"))


def recovery_seeds(inputs: Inputs) -> pd.DataFrame:
    """Sample recovery among greedy failures for every run seed: mean and range. Greedy is that of the lowest seed."""
    everything = inputs.compact[(inputs.compact["format"] == "open") & inputs.compact["sample_hit"].notna()]
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        ours = everything[(everything["task"] == setting["task"]) & (everything["checkpoint"] == setting["checkpoint"])]
        if ours["seed"].nunique() < 2:
            continue
        greedy = inputs.part(setting["checkpoint"], setting["task"], "open")
        failures = ours[ours["item"].isin(greedy.loc[greedy["produced"] == 0, "item"])]
        for language, part in slices(failures, inputs.languages(setting["task"])):
            by_seed = part.groupby("seed")["sample_hit"]
            rates, sizes = by_seed.mean(), by_seed.size()
            rows.append(
                {
                    **setting,
                    "language": language,
                    "seeds": len(rates),
                    "n_min": sizes.min() if len(sizes) else 0,
                    "n_max": sizes.max() if len(sizes) else 0,
                    "mean": float(rates.mean()) if len(rates) else None,
                    "lowest": float(rates.min()) if len(rates) else None,
                    "highest": float(rates.max()) if len(rates) else None,
                    "reason": None if len(rates) else "no greedy failure with samples",
                }
            )
    return table_frame(rows, SEED_COLUMNS, ("seeds", "n_min", "n_max"))


def _measured(items: pd.DataFrame, population: str, probe: str) -> Row:
    status = items[f"{probe}_status"]
    keep = status.isin(MEASURED)
    if population == FAILURES:
        keep &= items["produced"] == 0
    done = items[keep]
    hits = int(done[HIT[probe]].sum())
    reason = None
    if done.empty:
        reason = "no item was measured" if population == EVERYTHING else "greedy missed none of the items"
    tries = done[f"{probe}s"].dropna() if probe in ("beam", "sample") else pd.Series([1] * len(done))
    return {
        "n": len(done),
        "excluded": int((status == "excluded").sum()),
        "engine_error": int((status == "engine_error").sum()),
        "hits": hits,
        "tries": int(tries.max()) if len(tries) else None,
        **rate("rate", hits, len(done)),
        "reason": reason,
    }


def _paired(inputs: Inputs, pair: Pair, language: str, probe: str) -> Row:
    """The drop from the base, on the items where this probe and one of the broader ones were measured in both."""
    items = pair.measured(probe)
    if language != ALL:
        items = items[items["language"] == language]
    if probe == "greedy" and not items.empty:
        broad = [items[f"{name}_status_{side}"].notna() for name in ("beam", "sample") for side in ("dense", "pruned")]
        items = items[(broad[0] & broad[1]) | (broad[2] & broad[3])]
    if items.empty:
        return {"n_paired": 0, "reason": pair.reason or "no item is measured in both the checkpoint and its base"}
    dense, pruned = (truth(items[f"{HIT[probe]}_{side}"]) for side in ("dense", "pruned"))
    low, high = inputs.resampler(pair.task).mean_interval(numbers(items), dense - pruned)
    return {
        "n_paired": len(items),
        "drop": float((dense - pruned).mean()),
        "drop_low": low,
        "drop_high": high,
        "mcnemar_p": mcnemar_exact(int((dense > pruned).sum()), int((pruned > dense).sum())),
    }
