"""Tables that compare how an item is posed: `candidates` and `one_shot`.

`candidates` asks whether listed candidates help when the answer is not among them; `one_shot` whether one example
repairs the drop. Each compares accuracies on the same items: those measured under every format that takes part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from evaluator.metrics.counting import joined_reasons, measured, why_left_out
from evaluator.metrics.inputs import (
    ALL,
    ITEM,
    SETTING,
    Inputs,
    Row,
    correct_for_many,
    difference,
    numbers,
    paired,
    paired_p,
    pairs,
    rate,
    slices,
    table_frame,
    truth,
)
from evaluator.metrics.intervals import Rows
from evaluator.metrics.outcomes import MEASURED

CANDIDATE_FORMATS = ("open", "distractors_only", "unrelated", "shown")
SHOTS = ("zero", "one")
_COUNTS = ("n", "excluded", "engine_error")
CANDIDATE_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language", "format"),
    *_COUNTS,
    *("accuracy", "accuracy_low", "accuracy_high", "difference", "difference_low", "difference_high"),
    *("mcnemar_p", "holm_p", "reason"),
)
ONE_SHOT_COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *(*_COUNTS, "unpaired", "zero_shot_format"),
    *(f"{shot}_shot_{side}{end}" for shot in SHOTS for side in ("dense", "pruned") for end in ("", "_low", "_high")),
    *(f"{shot}_shot_{name}" for shot in SHOTS for name in ("gap", "gap_low", "gap_high", "mcnemar_p", "holm_p")),
    *("repaired", "repaired_low", "repaired_high", "reason"),
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
        for language, reference in slices(_pick(asked["open"], common), inputs.languages(setting["task"])):
            for form, part in asked.items():
                items = _pick(part, numbers(reference))
                row = {**setting, "language": language, "format": form, **_answered(part, language, len(items))}
                row |= rate("accuracy", int(items["produced"].sum()), len(items))
                if form != "open":
                    listed, opened = truth(items["produced"]), truth(_pick(reference, numbers(items))["produced"])
                    row |= difference(inputs, setting["task"], items, listed - opened, "difference")
                    row["mcnemar_p"] = paired_p(listed, opened)
                rows.append(row)
    correct_for_many(rows, ("task", "language", "format"))
    return table_frame(rows, CANDIDATE_COLUMNS, _COUNTS)


def one_shot(inputs: Inputs) -> pd.DataFrame:
    """0-shot and 1-shot accuracy and the prune gap (dense minus pruned) of each, on the items measured in all four.

    0-shot is `open_capped` where it was asked: its context is cut as that of `one_shot` is, so that the two differ by
    the example alone. Otherwise it is `open`, and `zero_shot_format` says so.
    """
    rows: list[Row] = []
    zeros = {form: paired(inputs, form) for form in ("open_capped", "open")}
    for one in pairs(inputs, "one_shot"):
        if one.items.empty:
            continue
        form = next((form for form in zeros if not zeros[form][one.task, one.checkpoint].items.empty), "open")
        zero = zeros[form][one.task, one.checkpoint]
        measured = zero.measured("greedy").merge(one.measured("greedy"), on=list(ITEM), suffixes=("_zero", "_one"))
        for language, items in slices(measured, inputs.languages(one.task)):
            row = {**one.setting, "language": language, "zero_shot_format": form, "n": len(items)}
            row |= one.counts(language, "greedy") | _shots(inputs, one.task, items)
            asked = one.items if language == ALL else one.items[one.items["language"] == language]
            why = why_left_out(asked, "greedy:_dense", "greedy:_pruned")
            rows.append(row | {"reason": joined_reasons(row.get("reason"), why)})
    for shot in SHOTS:
        correct_for_many(rows, ("task", "language"), f"{shot}_shot_mcnemar_p", f"{shot}_shot_holm_p")
    return table_frame(rows, ONE_SHOT_COLUMNS, (*_COUNTS, "unpaired"))


def _shots(inputs: Inputs, task: str, items: pd.DataFrame) -> Row:
    if items.empty:
        return {"reason": "no item is measured in both formats and both checkpoints"}
    row: Row = {}
    gaps = {}
    for shot in SHOTS:
        dense, pruned = (truth(items[f"produced_{side}_{shot}"]) for side in ("dense", "pruned"))
        row |= rate(f"{shot}_shot_dense", int(dense.sum()), len(items))
        row |= rate(f"{shot}_shot_pruned", int(pruned.sum()), len(items))
        row |= difference(inputs, task, items, dense - pruned, f"{shot}_shot_gap")
        row[f"{shot}_shot_mcnemar_p"] = paired_p(dense, pruned)
        gaps[shot] = dense - pruned
    return row | difference(inputs, task, items, gaps["zero"] - gaps["one"], "repaired")


def _common(parts: Mapping[str, pd.DataFrame]) -> Rows:
    sets = [set(part.loc[part["greedy_status"].isin(MEASURED), "item"]) for part in parts.values()]
    return np.asarray(sorted(set.intersection(*sets)), dtype=np.intp)


def _pick(part: pd.DataFrame, items: Rows) -> pd.DataFrame:
    """The rows of these items, in this order."""
    return part.set_index("item", drop=False).rename_axis(None).loc[items]


def _answered(part: pd.DataFrame, language: str, n: int) -> Row:
    here = part if language == ALL else part[part["language"] == language]
    _, row = measured(here, "greedy")
    nothing = None if n else "no item was measured in every format"
    return row | {"n": n, "reason": joined_reasons(nothing, row["reason"])}
