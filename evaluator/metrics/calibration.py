"""Table `calibration`: does the text that calibrated the pruning close the gap between choice and open?

Kinds of calibration (paper, section 5), read from the source's name:

    english         `c4`, or Wikipedia or the bundled gazetteer in English alone
    per_language    one of these in one other language
    multilingual    `balanced:...`, Wikipedia in several languages, or the whole `gazetteer`
    other           a file of the user's

"Per-language calibration" is many checkpoints: each language is asked of the one that was calibrated on it. Where a
base has at least two single-language checkpoints of one pruning setting, rows of a made-up checkpoint
`<setting> per language` put them together, English too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from evaluator.metrics.counting import measured
from evaluator.metrics.inputs import (
    MEAN,
    SETTING,
    Inputs,
    Row,
    difference,
    language_mean,
    rate,
    slices,
    table_frame,
    truth,
)

_COUNTS = ("n", "excluded", "engine_error")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "kind", "language"),
    *_COUNTS,
    *("open_accuracy", "open_accuracy_low", "open_accuracy_high"),
    *("choice_accuracy", "choice_accuracy_low", "choice_accuracy_high"),
    *("choice_minus_open", "choice_minus_open_low", "choice_minus_open_high", "reason"),
)
# Tasks name languages in full or by code, calibration sources too.
_CODES = {
    "arabic": "ar",
    "bengali": "bn",
    "chinese": "zh",
    "english": "en",
    "finnish": "fi",
    "german": "de",
    "greek": "el",
    "hindi": "hi",
    "indonesian": "id",
    "korean": "ko",
    "romanian": "ro",
    "russian": "ru",
    "spanish": "es",
    "swahili": "sw",
    "telugu": "te",
    "thai": "th",
    "turkish": "tr",
    "vietnamese": "vi",
}


def calibration(inputs: Inputs) -> pd.DataFrame:
    """Open and choice accuracy and their gap per calibrated checkpoint: pooled, mean over languages, by language."""
    rows: list[Row] = []
    alone: dict[tuple[object, ...], list[Row]] = {}
    for setting in inputs.checkpoints:
        if setting["base"] is None or setting["calibration"] is None:
            continue
        part = inputs.part(setting["checkpoint"], setting["task"], "open")
        rows += _rows(inputs, setting | {"kind": kind_of(setting["calibration"])}, part)
        if _single_language(setting["calibration"]) is not None:
            key = tuple(setting[name] for name in ("task", "base", "method", "pattern", "sparsity"))
            alone.setdefault(key, []).append(setting)
    for settings in alone.values():
        if len(settings) > 1:
            rows += _rows(inputs, *_together(inputs, settings))
    return table_frame(rows, COLUMNS, _COUNTS)


def kind_of(source: str) -> str:
    """The kind of a calibration source, by its name in the records."""
    family = source.partition(":")[0]
    if family in ("text", "jsonl"):
        return "other"
    language = "en" if family == "c4" else _single_language(source)
    return "multilingual" if language is None else "english" if language == "en" else "per_language"


def _single_language(source: str) -> str | None:
    """The code of the one language that a source is in, if it says so."""
    family, _, languages = source.partition(":")
    named = [_CODES.get(each, each) for each in re.split(r"[,\s]+", languages.strip().lower()) if each]
    return named[0] if family in ("wikipedia", "balanced", "gazetteer") and len(named) == 1 else None


def _together(inputs: Inputs, settings: Sequence[Row]) -> tuple[Row, pd.DataFrame]:
    """Each language's items from the checkpoint that was calibrated on it."""
    task = settings[0]["task"]
    own = {_single_language(setting["calibration"]): setting["checkpoint"] for setting in settings}
    parts = []
    for language in inputs.languages(task):
        checkpoint = own.get(_CODES.get(language.lower(), language.lower()))
        if checkpoint is not None:
            part = inputs.part(checkpoint, task, "open")
            parts.append(part[part["language"] == language])
    amount = settings[0]["pattern"] if settings[0]["pattern"] != "unstructured" else settings[0]["sparsity"]
    name = f"{settings[0]['method']}-{amount} per language"
    setting = settings[0] | {"checkpoint": name, "calibration": "each language's own", "kind": "per_language"}
    return setting, pd.concat(parts) if parts else inputs.part("", task, "open")


def _rows(inputs: Inputs, setting: Row, part: pd.DataFrame) -> list[Row]:
    known, _ = measured(part, "greedy", "choice")
    if known.empty:
        return []
    rows: list[Row] = []
    for language, asked in slices(part, inputs.languages(setting["task"])):
        done, counts = measured(asked, "greedy", "choice", nothing="no item was measured with both greedy and choice")
        row: Row = {**setting, "language": language, **counts}
        opened, chosen = truth(done["produced"]), truth(done["recognised"])
        row |= rate("open_accuracy", int(opened.sum()), len(done))
        row |= rate("choice_accuracy", int(chosen.sum()), len(done))
        row |= difference(inputs, setting["task"], done, chosen - opened, "choice_minus_open")
        rows.append(row)
    mean = {name: value for name, value in rows[0].items() if not name.endswith(("_low", "_high"))}
    opened, chosen = truth(known["produced"]), truth(known["recognised"])
    values = {"open_accuracy": opened, "choice_accuracy": chosen, "choice_minus_open": chosen - opened}
    mean |= {"language": MEAN} | language_mean(inputs, setting["task"], known, **values)
    mean["reason"] = f"unweighted mean over {known['language'].nunique()} of {len(rows) - 1} languages"
    return [rows[0], mean, *rows[1:]]
