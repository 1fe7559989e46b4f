"""Tables `recovery` and `recovery_seeds`: is the answer anywhere in the beams or the samples?

Beams and samples are asked of the first 100 of each language's items only, so every rate here, the greedy accuracy
too, is over the items on which the probe was measured. Population `greedy_failures` keeps those that the same
checkpoint's greedy output misses: its rate is what broader decoding wins back.
"""

from __future__ import annotations

import pandas as pd

from evaluator.metrics.inputs import (
    ALL,
    SETTING,
    Inputs,
    Pair,
    Row,
    correct_for_many,
    difference,
    paired,
    paired_p,
    rate,
    slices,
    table_frame,
    truth,
)
from evaluator.metrics.outcomes import MEASURED

HIT = {"greedy": "produced", "beam": "beam_hit", "sample": "sample_hit"}
EVERYTHING, FAILURES = "all_items", "greedy_failures"

_COUNTS = ("n", "excluded", "engine_error", "hits", "n_paired")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "population", "probe", "tries"),
    *_COUNTS[:-1],
    *("rate", "rate_low", "rate_high", "n_paired", "drop", "drop_low", "drop_high", "mcnemar_p", "holm_p", "reason"),
)
SEED_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "seeds"),
    *("n_min", "n_max", "excluded", "engine_error"),
    *("mean", "mean_low", "mean_high", "lowest", "highest", "reason"),
)


def recovery(inputs: Inputs) -> pd.DataFrame:
    """The table: greedy, beam and sample, over all items and among the checkpoint's own greedy failures."""
    with_base = paired(inputs)
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
                    pair = with_base.get((setting["task"], setting["checkpoint"]))
                    if pair is not None and population == EVERYTHING:
                        row |= _paired(inputs, pair, language, probe)
                    rows.append(row)
    correct_for_many(rows, ("task", "language", "population", "probe"))
    return table_frame(rows, COLUMNS, (*_COUNTS, "tries"))


def recovery_seeds(inputs: Inputs) -> pd.DataFrame:
    """Sample recovery among greedy failures for every run seed: mean and range over the seeds.

    The greedy output does not depend on the seed; it is that of the lowest. `mean` is the mean of the seeds' rates, its
    interval a bootstrap over items: the range shows the noise of sampling, the interval that of the choice of items.
    """
    everything = inputs.compact[(inputs.compact["format"] == "open") & inputs.compact["sample_status"].notna()]
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        ours = everything[(everything["task"] == setting["task"]) & (everything["checkpoint"] == setting["checkpoint"])]
        if ours["seed"].nunique() < 2:
            continue
        greedy = inputs.part(setting["checkpoint"], setting["task"], "open")
        failures = ours[ours["item"].isin(greedy.loc[greedy["produced"] == 0, "item"])]
        for language, part in slices(failures, inputs.languages(setting["task"])):
            row = {**setting, "language": language, "seeds": int(ours["seed"].nunique())}
            rows.append(row | _over_seeds(inputs, setting["task"], part))
    return table_frame(rows, SEED_COLUMNS, ("seeds", "n_min", "n_max", "excluded", "engine_error"))


def _over_seeds(inputs: Inputs, task: str, failures: pd.DataFrame) -> Row:
    done = failures[failures["sample_hit"].notna()]
    left_out = {
        name: failures.loc[failures["sample_status"] == name, "item"].nunique() for name in ("excluded", "engine_error")
    }
    if done.empty:
        return {"n_min": 0, "n_max": 0, **left_out, "reason": "no greedy failure with samples"}
    by_seed = done.groupby("seed")["sample_hit"].agg(["mean", "size"])
    by_item = done.groupby("item")["sample_hit"].mean().reset_index()
    interval = difference(inputs, task, by_item, truth(by_item["sample_hit"]), "mean")
    return {
        "n_min": int(by_seed["size"].min()),
        "n_max": int(by_seed["size"].max()),
        **left_out,
        **interval,
        "mean": float(by_seed["mean"].mean()),
        "lowest": float(by_seed["mean"].min()),
        "highest": float(by_seed["mean"].max()),
    }


def _measured(items: pd.DataFrame, population: str, probe: str) -> Row:
    status = items[f"{probe}_status"]
    keep = status.isin(MEASURED)
    if population == FAILURES:
        keep &= items["produced"] == 0
    done = items[keep]
    hits = int(done[HIT[probe]].sum())
    reason = None
    if done.empty:
        missed = "greedy missed none of the items" if items["produced"].notna().any() else "greedy was not measured"
        reason = "no item was measured" if population == EVERYTHING else missed
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
    drop = difference(inputs, pair.task, items, dense - pruned, "drop")
    return {"n_paired": len(items), **drop, "mcnemar_p": paired_p(dense, pruned)}
