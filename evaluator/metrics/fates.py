"""Table `fates`: what became of the answers that the dense model both produced and recognised.

    kept            still produced (open, greedy) and still recognised (choice)
    mc_only         recognised, no longer produced; its share of n is the dissociation rate
    produced_only   produced, no longer recognised
    lost            neither

`mc_only_corrected` subtracts what guessing among K options would have moved from lost to mc_only: if U items are truly
not recognised, U/K of them are picked by chance and U(1 - 1/K) are counted as lost, so each lost item stands for
1/(K - 1) lucky guesses. It is not clipped: a value under zero says that chance explains more than was seen.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import (
    SETTING,
    Inputs,
    Pair,
    Row,
    numbers,
    pairs,
    rate,
    slices,
    table_frame,
    truth,
)

FATES = ("kept", "mc_only", "produced_only", "lost")
NOT_KNOWN = "not_known"  # the dense model did not both produce and recognise it
UNMEASURED = "unmeasured"

_COUNTS = ("n", "items", "excluded", "engine_error", *FATES)
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "noise_floor", "language"),
    *_COUNTS,
    *(f"{fate}_rate{end}" for fate in FATES for end in ("", "_low", "_high")),
    *("dissociation_rate", "dissociation_boot_low", "dissociation_boot_high"),
    *("mc_only_corrected", "mc_only_corrected_low", "mc_only_corrected_high"),
    "reason",
)


def fates(inputs: Inputs) -> pd.DataFrame:
    """The table: one row per checkpoint with a base, task and language, and a pooled row `all`.

    A dense checkpoint that names another dense one as its base is a re-run: its row is the noise floor.
    """
    rows: list[Row] = []
    for pair in pairs(inputs):
        known = both_correct(pair.items).assign(fate=lambda items: item_fates(items))
        for language, items in slices(pair.items, [] if pair.reason else inputs.languages(pair.task)):
            part = known if language == "all" else known[known["language"] == language]
            rows.append(_row(inputs, pair, items, part, language))
    return table_frame(rows, COLUMNS, _COUNTS)


def item_fates(items: pd.DataFrame) -> pd.Series:
    """The fate of each row of a pair's items, or `not_known`, or `unmeasured`."""
    measured = _measured(items)
    known = ((items["produced_dense"] == 1) & (items["recognised_dense"] == 1)).to_numpy()
    produced, recognised = (items[f"{name}_pruned"].to_numpy() == 1 for name in ("produced", "recognised"))
    fate = np.select(
        [~measured, ~known, produced & recognised, recognised, produced],
        [UNMEASURED, NOT_KNOWN, "kept", "mc_only", "produced_only"],
        default="lost",
    )
    return pd.Series(fate, index=items.index, dtype="object")


def both_correct(items: pd.DataFrame) -> pd.DataFrame:
    """The rows measured in both formats and both checkpoints whose answer the dense model produced and recognised."""
    return items[item_fates(items).isin(FATES)]


def _measured(items: pd.DataFrame) -> np.ndarray:
    columns = [f"{name}_{side}" for name in ("produced", "recognised") for side in ("dense", "pruned")]
    return items[columns].notna().all(axis=1).to_numpy(bool)


def _row(inputs: Inputs, pair: Pair, items: pd.DataFrame, known: pd.DataFrame, language: str) -> Row:
    n = len(known)
    counts = {fate: int((known["fate"] == fate).sum()) for fate in FATES}
    row: Row = {
        **pair.setting,
        "noise_floor": pair.setting["method"] is None,
        "language": language,
        "n": n,
        "items": int(_measured(items).sum()),
        **pair.counts(items, "greedy", "choice"),
        **counts,
        "reason": _reason(pair, items, n),
    }
    for fate in FATES:
        row |= rate(f"{fate}_rate", counts[fate], n)
    row["dissociation_rate"] = row["mc_only_rate"]
    if n:
        resampler, names = inputs.resampler(pair.task), numbers(known)
        is_mc_only = truth(known["fate"] == "mc_only")
        rivals = truth(known["options_pruned"]) - 1
        guesses = truth(known["fate"] == "lost") / rivals
        row["dissociation_boot_low"], row["dissociation_boot_high"] = resampler.mean_interval(names, is_mc_only)
        corrected = is_mc_only - guesses
        row["mc_only_corrected"] = float(corrected.mean())
        row["mc_only_corrected_low"], row["mc_only_corrected_high"] = resampler.mean_interval(names, corrected)
    return row


def _reason(pair: Pair, items: pd.DataFrame, n: int) -> str | None:
    if pair.reason or n:
        return pair.reason
    if items.empty:
        return "no item of this language is common to the checkpoint and its base"
    if not _measured(items).any():
        return "no item was measured with both probes greedy and choice in both checkpoints"
    return "the dense model both produced and recognised none of the items"
