"""Tables that compare how an item is posed: `candidates`, `one_shot` and `calibration`.

`candidates` asks whether listed candidates help when the answer is not among them; `one_shot` whether one example
repairs the drop; `calibration` whether the text that calibrated the pruning closes the gap between choice and open.
Each compares accuracies on the same items: those measured under every format that takes part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from evaluator.metrics.accuracy import CORRECT
from evaluator.metrics.inputs import (
    ALL,
    ITEM,
    MEAN,
    SETTING,
    Inputs,
    Row,
    numbers,
    pairs,
    rate,
    slices,
    table_frame,
    truth,
)
from evaluator.metrics.intervals import Rows
from evaluator.metrics.outcomes import MEASURED

CANDIDATE_FORMATS = ("open", "distractors_only", "unrelated", "shown")
_COUNTS = ("n", "excluded", "engine_error")
CANDIDATE_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "format"),
    *_COUNTS,
    *("accuracy", "accuracy_low", "accuracy_high", "difference", "difference_low", "difference_high", "reason"),
)
ONE_SHOT_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_COUNTS,
    *("zero_shot_dense", "zero_shot_pruned", "one_shot_dense", "one_shot_pruned"),
    *("zero_shot_gap", "zero_shot_gap_low", "zero_shot_gap_high"),
    *("one_shot_gap", "one_shot_gap_low", "one_shot_gap_high"),
    *("repaired", "repaired_low", "repaired_high", "reason"),
)
CALIBRATION_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_COUNTS,
    *("open_accuracy", "open_accuracy_low", "open_accuracy_high"),
    *("choice_accuracy", "choice_accuracy_low", "choice_accuracy_high"),
    *("choice_minus_open", "choice_minus_open_low", "choice_minus_open_high", "reason"),
)


def candidates(inputs: Inputs) -> pd.DataFrame:
    """Open accuracy without candidates, with distractors only, with unrelated ones, and with the gold among them.

    `difference` is from `open` on the same items, with a paired bootstrap interval.
    """
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        parts = {form: inputs.part(setting["checkpoint"], setting["task"], form) for form in CANDIDATE_FORMATS}
        asked = {form: part for form, part in parts.items() if part["greedy_status"].notna().any()}
        if len(asked) < 2 or "open" not in asked:
            continue
        common = _common(asked)
        resampler = inputs.resampler(setting["task"])
        for language, reference in slices(_pick(asked["open"], common), inputs.languages(setting["task"])):
            for form, part in asked.items():
                items = _pick(part, numbers(reference))
                row = {**setting, "language": language, "format": form, **_answered(part, language, len(items))}
                row |= rate("accuracy", int(items["produced"].sum()), len(items))
                if form != "open" and len(items):
                    change = truth(items["produced"]) - truth(_pick(reference, numbers(items))["produced"])
                    low, high = resampler.mean_interval(numbers(items), change)
                    row |= {"difference": float(change.mean()), "difference_low": low, "difference_high": high}
                rows.append(row)
    return table_frame(rows, CANDIDATE_COLUMNS, _COUNTS)


def one_shot(inputs: Inputs) -> pd.DataFrame:
    """0-shot and 1-shot accuracy and the prune gap (dense minus pruned) of each, on the items measured in all four."""
    rows: list[Row] = []
    shots = {(pair.task, pair.checkpoint): pair for pair in pairs(inputs, "one_shot")}
    for zero in pairs(inputs, "open"):
        one = shots[zero.task, zero.checkpoint]
        if one.items.empty:
            continue
        measured = zero.measured("greedy").merge(one.measured("greedy"), on=list(ITEM), suffixes=("_zero", "_one"))
        resampler = inputs.resampler(zero.task)
        for language, items in slices(measured, inputs.languages(zero.task)):
            part = one.items if language == ALL else one.items[one.items["language"] == language]
            row: Row = {**zero.setting, "language": language, "n": len(items), **one.counts(part, "greedy")}
            if items.empty:
                rows.append(row | {"reason": "no item is measured in both formats and both checkpoints"})
                continue
            values = {
                f"{shot}_shot_{side}": truth(items[f"produced_{side}_{shot}"])
                for shot in ("zero", "one")
                for side in ("dense", "pruned")
            }
            gaps = {shot: values[f"{shot}_shot_dense"] - values[f"{shot}_shot_pruned"] for shot in ("zero", "one")}
            row |= {name: float(value.mean()) for name, value in values.items()}
            for name, gap in (
                ("zero_shot_gap", gaps["zero"]),
                ("one_shot_gap", gaps["one"]),
                ("repaired", gaps["zero"] - gaps["one"]),
            ):
                low, high = resampler.mean_interval(numbers(items), gap)
                row |= {name: float(gap.mean()), f"{name}_low": low, f"{name}_high": high}
            rows.append(row)
    return table_frame(rows, ONE_SHOT_COLUMNS, _COUNTS)


def calibration(inputs: Inputs) -> pd.DataFrame:
    """Open and choice accuracy and their gap, per calibration source: pooled and as the mean over languages."""
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        part = inputs.part(setting["checkpoint"], setting["task"], "open")
        done = part[part["greedy_status"].isin(MEASURED) & part["choice_status"].isin(MEASURED)]
        if setting["base"] is None or setting["calibration"] is None or done.empty:
            continue
        opened, chosen = truth(done["produced"]), truth(done["recognised"])
        low, high = inputs.resampler(setting["task"]).mean_interval(numbers(done), chosen - opened)
        pooled = {**setting, "language": ALL, **_answered(part, ALL, len(done), tuple(CORRECT))}
        pooled |= rate("open_accuracy", int(opened.sum()), len(done))
        pooled |= rate("choice_accuracy", int(chosen.sum()), len(done))
        pooled |= {"choice_minus_open": float((chosen - opened).mean())}
        rows.append(pooled | {"choice_minus_open_low": low, "choice_minus_open_high": high})
        by_language = done.assign(o=opened, c=chosen).groupby("language")[["o", "c"]].mean().mean()
        mean = {**setting, "language": MEAN, **{name: pooled[name] for name in _COUNTS}}
        mean |= {"open_accuracy": float(by_language["o"]), "choice_accuracy": float(by_language["c"])}
        rows.append(mean | {"choice_minus_open": float(by_language["c"] - by_language["o"])})
    return table_frame(rows, CALIBRATION_COLUMNS, _COUNTS)


def _common(parts: Mapping[str, pd.DataFrame]) -> Rows:
    sets = [set(part.loc[part["greedy_status"].isin(MEASURED), "item"]) for part in parts.values()]
    return np.asarray(sorted(set.intersection(*sets)), dtype=np.intp)


def _pick(part: pd.DataFrame, items: Rows) -> pd.DataFrame:
    """The rows of these items, in this order."""
    return part.set_index("item", drop=False).rename_axis(None).loc[items]


def _answered(part: pd.DataFrame, language: str, n: int, probes: tuple[str, ...] = ("greedy",)) -> Row:
    here = part if language == ALL else part[part["language"] == language]
    status = pd.concat([here[f"{probe}_status"] for probe in probes], axis=1)
    excluded = (status == "excluded").any(axis=1)
    failed = (status == "engine_error").any(axis=1) & ~excluded
    reason = None if n else "no item was measured in every format"
    return {"n": n, "excluded": int(excluded.sum()), "engine_error": int(failed.sum()), "reason": reason}
