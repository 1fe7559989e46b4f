"""Table `rank`: where the gold answer's first token stands in the next-token distribution after the open prompt.

Groups of items: `all`; `mc_only` (the fate, so only for a checkpoint with a base); `dense_failures`, which the dense
model's greedy output misses. `side` says whose ranks: the checkpoint's own, or its base's on exactly the same items.
"""

from __future__ import annotations

import pandas as pd

from evaluator.metrics.fates import UNMEASURED, item_fates
from evaluator.metrics.inputs import SETTING, Inputs, Row, numbers, pairs, rate, slices, table_frame, truth
from evaluator.metrics.outcomes import MEASURED

GROUPS = ("all", "mc_only", "dense_failures")
NEEDS = {
    "mc_only": "needs the probes greedy and choice on a checkpoint and its base (for the group mc_only)",
    "dense_failures": "needs the probe greedy on the dense model (for the group dense_failures)",
}
BANDS = {"rank_1": (1, 1), "rank_2_5": (2, 5), "rank_6_20": (6, 20), "rank_over_20": (21, None)}

_COUNTS = ("n", "excluded", "engine_error")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "group", "side"),
    *_COUNTS,
    *("rank_median", "rank_median_low", "rank_median_high", "rank_q1", "rank_q3"),
    *(f"{band}{end}" for band in BANDS for end in ("", "_low", "_high")),
    *("margin_median", "margin_median_low", "margin_median_high", "reason"),
)


def rank(inputs: Inputs) -> pd.DataFrame:
    """The table: dense checkpoints by themselves, pruned ones beside their base on the items common to both."""
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        items = inputs.part(setting["checkpoint"], setting["task"], "open")
        if setting["base"] is None and items["rank_status"].notna().any():
            missed = None if items["produced"].notna().any() else NEEDS["dense_failures"]
            rows += _group(inputs, setting, items, "all", "own", "")
            rows += _group(inputs, setting, items[items["produced"] == 0], "dense_failures", "own", "", missed)
    for pair in pairs(inputs):
        items = pair.items
        if not pair.reason and not items["rank_status_pruned"].notna().any():
            continue
        fates = item_fates(items)
        grouped = {
            "all": items,
            "mc_only": items[fates == "mc_only"],
            "dense_failures": items[items["produced_dense"] == 0],
        }
        unknown = {
            "mc_only": (fates == UNMEASURED).all(),
            "dense_failures": items["produced_dense"].isna().all(),
        }
        if pair.reason:  # its own ranks are known all the same
            own = inputs.part(pair.checkpoint, pair.task, "open")
            if own["rank_status"].notna().any():
                rows += _group(inputs, pair.setting, own, "all", "own", "")
        for group in GROUPS[1:] if pair.reason else GROUPS:
            why = NEEDS[group] if unknown.get(group) else None
            for side, suffix in (("own", "_pruned"), ("base", "_dense")):
                rows += _group(inputs, pair.setting, grouped[group], group, side, suffix, why, pair.reason)
    return table_frame(rows, COLUMNS, _COUNTS)


def _group(
    inputs: Inputs,
    setting: Row,
    items: pd.DataFrame,
    group: str,
    side: str,
    suffix: str,
    why_empty: str | None = None,
    no_pair: str | None = None,
) -> list[Row]:
    rows = []
    for language, part in slices(items, [] if no_pair else inputs.languages(setting["task"])):
        row = {**setting, "language": language, "group": group, "side": side}
        rows.append(row | _statistics(inputs, setting["task"], part, suffix, no_pair or why_empty))
    return rows


def _statistics(inputs: Inputs, task: str, items: pd.DataFrame, suffix: str, why_empty: str | None) -> Row:
    status = items[f"rank_status{suffix}"]
    done = items[status.isin(MEASURED) & items[f"rank{suffix}"].notna()]
    n = len(done)
    row: Row = {
        "n": n,
        "excluded": int((status == "excluded").sum()),
        "engine_error": int((status == "engine_error").sum()),
        "reason": None if n else why_empty or "no item of this group has a measured rank",
    }
    if n == 0:
        return row
    ranks = truth(done[f"rank{suffix}"])
    resampler, names = inputs.resampler(task), numbers(done)
    row["rank_q1"], row["rank_median"], row["rank_q3"] = (
        float(value) for value in pd.Series(ranks).quantile([0.25, 0.5, 0.75])
    )
    row["rank_median_low"], row["rank_median_high"] = resampler.median_interval(names, ranks)
    for band, (first, last) in BANDS.items():
        inside = (ranks >= first) & (ranks <= (float("inf") if last is None else last))
        row |= rate(band, int(inside.sum()), n)
    margins = done[done[f"margin{suffix}"].notna()]
    if not margins.empty:
        values = truth(margins[f"margin{suffix}"])
        row["margin_median"] = float(pd.Series(values).median())
        row["margin_median_low"], row["margin_median_high"] = resampler.median_interval(numbers(margins), values)
    return row
