"""Table `fertility`: how finely the tokenizer cuts a language, beside what pruning costs that language.

Fertility is tokens per word of the answer options that the probe `choice` scored, gold and distractors alike, over all
items of the language: token_ids of the scored options divided by their white-space-separated words. For scripts without
spaces between words it is tokens per character (white space not counted), and `unit` says so. Options are what the
records hold both as text and as tokens, all of it in the item's language; they are short, so a language's figure is
higher than on running text, alike for all languages. A pruned checkpoint shares its base's tokenizer.
"""

from __future__ import annotations

import pandas as pd

from evaluator.grading import without_spaces
from evaluator.metrics.accuracy import CORRECT, floor_of, normalised
from evaluator.metrics.inputs import SETTING, Inputs, Pair, Row, difference, pairs, table_frame, truth
from evaluator.metrics.outcomes import MEASURED

_COUNTS = ("n", "excluded", "engine_error", "tokens", "units", "n_paired")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_COUNTS[:-1],
    *("unit", "fertility", "n_paired"),
    *("open_drop", "open_drop_low", "open_drop_high", "open_normalised_drop"),
    *("choice_drop", "choice_drop_low", "choice_drop_high", "reason"),
)


def fertility(inputs: Inputs) -> pd.DataFrame:
    """The table: one row per checkpoint and language; drops where the checkpoint has a base."""
    paired = {(pair.task, pair.checkpoint): pair for pair in pairs(inputs)}
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        items = inputs.part(setting["checkpoint"], setting["task"], "open")
        if not items["choice_status"].notna().any():
            continue
        for language in inputs.languages(setting["task"]):
            row = {**setting, "language": language, **_fertility(items[items["language"] == language], language)}
            pair = paired.get((setting["task"], setting["checkpoint"]))
            if pair is not None:
                row |= _drops(inputs, pair, language)
            rows.append(row)
    return table_frame(rows, COLUMNS, _COUNTS)


def _fertility(items: pd.DataFrame, language: str) -> Row:
    done = items[items["choice_status"].isin(MEASURED) & items["option_tokens"].notna()]
    unit = "character" if without_spaces(language) else "word"
    tokens, units = int(done["option_tokens"].sum()), int(done[f"option_{unit}s"].sum())
    return {
        "n": len(done),
        "excluded": int((items["choice_status"] == "excluded").sum()),
        "engine_error": int((items["choice_status"] == "engine_error").sum()),
        "tokens": tokens,
        "units": units,
        "unit": unit,
        "fertility": tokens / units if units else None,
        "reason": None if units else "no option was scored",
    }


def _drops(inputs: Inputs, pair: Pair, language: str) -> Row:
    """The drops on the items that both probes measured in both checkpoints."""
    both = pair.measured("greedy", "choice")
    both = both[both["language"] == language]
    row: Row = {"n_paired": len(both)}
    if both.empty:
        return row
    for name, probe in (("open", "greedy"), ("choice", "choice")):
        dense, pruned = (truth(both[f"{CORRECT[probe]}_{side}"]) for side in ("dense", "pruned"))
        row |= difference(inputs, pair.task, both, dense - pruned, f"{name}_drop")
        if name == "open":
            lost = row["open_drop"]
            row["open_normalised_drop"], _ = normalised(lost, float(dense.mean()), floor_of(both, probe, "_dense"))
    return row
