"""Table `fates`: what became of the answers that the dense model both produced and recognised.

    kept            still produced (open, greedy) and still recognised (choice)
    mc_only         recognised, no longer produced; its share of n is the dissociation rate
    produced_only   produced, no longer recognised
    lost            neither

`mc_only_corrected` subtracts what guessing among K options would have moved from lost to mc_only: if U items are truly
not recognised, U/K of them are picked by chance and U(1 - 1/K) are counted as lost, so each lost item stands for
1/(K - 1) lucky guesses. It is not clipped: a value under zero says that chance explains more than was seen.

A checkpoint with the very weights of its base is a re-run: what it calls mc_only is noise of the measurement. Its rows
are the noise floor, and `noise_floor` is its dissociation rate beside those of the pruned checkpoints of that base.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from evaluator.metrics.inputs import SETTING, Inputs, Pair, Row, numbers, pairs, rate, slices, table_frame, truth

FATES = ("kept", "mc_only", "produced_only", "lost")
NOT_KNOWN = "not_known"  # the dense model did not both produce and recognise it
UNMEASURED = "unmeasured"

_COUNTS = ("n", "items", "excluded", "engine_error", "unpaired", *FATES)
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "re_run", "language"),
    *_COUNTS,
    *(f"{fate}_rate{end}" for fate in FATES for end in ("", "_low", "_high")),
    *("dissociation_rate", "dissociation_rate_low", "dissociation_rate_high"),
    *("dissociation_boot_low", "dissociation_boot_high", "noise_floor"),
    *("mc_only_corrected", "mc_only_corrected_low", "mc_only_corrected_high"),
    "reason",
)


def fates(inputs: Inputs) -> pd.DataFrame:
    """The table: one row per checkpoint with a base, task and language, and a pooled row `all`."""
    rows: list[Row] = []
    for pair in pairs(inputs):
        known = both_correct(pair.items).assign(fate=lambda items: item_fates(items))
        for language, items in slices(pair.items, [] if pair.reason else inputs.languages(pair.task)):
            part = known if language == "all" else known[known["language"] == language]
            rows.append(_row(inputs, pair, items, part, language))
    noise = {_place(row): row["dissociation_rate"] for row in rows if row["re_run"]}
    for row in rows:
        row["noise_floor"] = None if row["re_run"] else noise.get(_place(row))
    return table_frame(rows, COLUMNS, _COUNTS)


def _place(row: Row) -> tuple[object, ...]:
    return row["task"], row["base"], row["language"]


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
        "language": language,
        "n": n,
        "items": int(_measured(items).sum()),
        **pair.counts(language, "greedy", "choice"),
        **counts,
        "reason": _reason(pair, items, n),
    }
    for fate in FATES:
        row |= rate(f"{fate}_rate", counts[fate], n)
    row |= rate("dissociation_rate", counts["mc_only"], n)
    if n:
        resampler, names = inputs.resampler(pair.task), numbers(known)
        is_mc_only = truth(known["fate"] == "mc_only")
        guesses = truth(known["fate"] == "lost") / (truth(known["options_pruned"]) - 1)
        corrected = is_mc_only - guesses
        row["mc_only_corrected"] = float(corrected.mean())
        draws = resampler.means(names, is_mc_only, corrected)
        for name, each in zip(("dissociation_boot", "mc_only_corrected"), draws, strict=True):
            row[f"{name}_low"], row[f"{name}_high"] = resampler.interval(names, each)
    return row


def _reason(pair: Pair, items: pd.DataFrame, n: int) -> str | None:
    if pair.reason or n:
        return pair.reason
    if items.empty:
        return "no item of this language is common to the checkpoint and its base"
    if not _measured(items).any():
        return "no item was measured with both probes greedy and choice in both checkpoints"
    return "the dense model both produced and recognised none of the items"
