"""Table `fertility`: how finely the tokenizer cuts a language, beside what pruning costs that language.

Fertility is tokens per word of the answer options that the probe `choice` scored, gold and distractors alike, over all
items of the language: token_ids of the scored options divided by their white-space-separated words. For scripts without
spaces between words it is tokens per character (white space not counted), and `unit` says so. Options are what the
records hold both as text and as tokens, all of it in the item's language; they are short, so a language's figure is
higher than on running text, alike for all languages. A pruned checkpoint shares its base's tokenizer.

Row `mean` is the unweighted mean over the languages of one unit: tokens per word and tokens per character do not mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from evaluator.grading import without_spaces
from evaluator.metrics.accuracy import CORRECT, floor_of, normalised
from evaluator.metrics.counting import measured
from evaluator.metrics.inputs import (
    MEAN,
    SETTING,
    Inputs,
    Pair,
    Row,
    language_mean,
    numbers,
    paired,
    table_frame,
    truth,
)
from evaluator.metrics.intervals import Floats, nan_mean, percentile_interval

_SUMMED = ("n", "excluded", "engine_error", "tokens", "units")
_COUNTS = (*_SUMMED, "n_paired")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_SUMMED,
    *("unit", "fertility", "fertility_low", "fertility_high", "n_paired"),
    *("open_drop", "open_drop_low", "open_drop_high", "open_normalised_drop"),
    *("choice_drop", "choice_drop_low", "choice_drop_high", "reason"),
)


def fertility(inputs: Inputs) -> pd.DataFrame:
    """The table: a mean for each unit and a row per language; drops where the checkpoint has a base."""
    with_base = paired(inputs)
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        items = inputs.part(setting["checkpoint"], setting["task"], "open")
        if not items["choice_status"].notna().any():
            continue
        pair = with_base.get((setting["task"], setting["checkpoint"]))
        by_language: list[Row] = []
        draws: dict[str, Floats] = {}
        for language in inputs.languages(setting["task"]):
            row, draws[language] = _fertility(inputs, setting, items[items["language"] == language], language)
            by_language.append(row | (_drops(inputs, pair, language) if pair is not None else {}))
        rows += [*_means(inputs, setting, pair, by_language, draws), *by_language]
    return table_frame(rows, COLUMNS, _COUNTS)


def _fertility(inputs: Inputs, setting: Row, items: pd.DataFrame, language: str) -> tuple[Row, Floats]:
    done, counts = measured(items, "choice", nothing="no option was scored")
    done = done[done["option_tokens"].notna()]
    unit = "character" if without_spaces(language) else "word"
    tokens, units = int(done["option_tokens"].sum()), int(done[f"option_{unit}s"].sum())
    row: Row = {**setting, "language": language, **counts, "n": len(done), "tokens": tokens, "units": units}
    row |= {"unit": unit, "fertility": tokens / units if units else None}
    if not units:
        return row, np.array([])
    resampler, names = inputs.resampler(setting["task"]), numbers(done)
    cut, of = resampler.means(names, truth(done["option_tokens"]), truth(done[f"option_{unit}s"]))
    row["fertility_low"], row["fertility_high"] = resampler.interval(names, cut / of)
    return row, cut / of


def _means(
    inputs: Inputs, setting: Row, pair: Pair | None, by_language: Sequence[Row], draws: Mapping[str, Floats]
) -> list[Row]:
    """The unweighted mean over the languages of each unit; counts are sums."""
    rows = []
    for unit in dict.fromkeys(row["unit"] for row in by_language):
        whole = [row for row in by_language if row["unit"] == unit]
        known = [row for row in whole if row["fertility"] is not None]
        row: Row = {**setting, "language": MEAN, "unit": unit}
        row |= {name: sum(each[name] for each in whole) for name in _SUMMED}
        row["reason"] = f"unweighted mean over {len(known)} of {len(whole)} languages with tokens per {unit}"
        if known:
            row["fertility"] = sum(each["fertility"] for each in known) / len(known)
            if all(each["fertility_low"] is not None for each in known):
                drawn = nan_mean([draws[each["language"]] for each in known])
                row["fertility_low"], row["fertility_high"] = percentile_interval(drawn)
        if pair is not None:
            row |= _drops(inputs, pair, *(each["language"] for each in whole))
        normal = [each["open_normalised_drop"] for each in whole if each.get("open_normalised_drop") is not None]
        row["open_normalised_drop"] = sum(normal) / len(normal) if normal else None
        rows.append(row)
    return rows


def _drops(inputs: Inputs, pair: Pair, *languages: str) -> Row:
    """The drops on the items that both probes measured in both checkpoints, as the mean over these languages."""
    both = pair.measured("greedy", "choice")
    both = both[both["language"].isin(languages)]
    row: Row = {"n_paired": len(both)}
    if both.empty:
        return row
    right = {
        probe: [truth(both[f"{CORRECT[probe]}_{side}"]) for side in ("dense", "pruned")]
        for probe in ("greedy", "choice")
    }
    (dense, said), (picked, still) = right["greedy"], right["choice"]
    row |= language_mean(inputs, pair.task, both, open_drop=dense - said, choice_drop=picked - still)
    floor = floor_of(both, "greedy", "_dense")
    row["open_normalised_drop"], _ = normalised(row["open_drop"], float(dense.mean()), floor)
    return row
