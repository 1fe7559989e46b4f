"""Table `accuracy`: per checkpoint, task, format, probe and language, with the paired drop from the base.

Probe `greedy` is right when the output contains a gold answer; probe `choice` when the gold option has strictly the
highest summed log-likelihood. `drop` is dense minus pruned on the items measured in both; `normalised_drop` divides it
by the headroom of protocol.md: dense accuracy minus the floor (0 for generated formats, 1/K for choice).

Row `mean` is the unweighted mean over languages of accuracies and drops, each with the bootstrap interval of that mean.
"""

from __future__ import annotations

import pandas as pd

from evaluator.metrics.counting import joined_reasons, measured
from evaluator.metrics.inputs import (
    ALL,
    MEAN,
    SETTING,
    Inputs,
    Pair,
    Row,
    correct_for_many,
    difference,
    language_mean,
    paired,
    paired_p,
    rate,
    slices,
    table_frame,
    truth,
)
from evaluator.metrics.outcomes import MEASURED

CORRECT = {"greedy": "produced", "choice": "recognised"}
_RATES = {
    "greedy": {"accuracy": "produced", "exact_match": "exact_match"},
    "choice": {"accuracy": "recognised", "per_token": "recognised_per_token", "per_byte": "recognised_per_byte"},
}
_IDENTITY = ("task", "checkpoint", "base", *SETTING, "format", "probe", "language")
_COUNTS = ("n", "excluded", "engine_error", "truncated", "n_paired")
_MEASURES = ("accuracy", "exact_match", "per_token", "per_byte", "truncation")
COLUMNS = (
    *_IDENTITY,
    *_COUNTS[:-1],
    *(f"{name}{end}" for name in _MEASURES for end in ("", "_low", "_high")),
    "token_f1",
    "n_paired",
    "dense_accuracy",
    "drop",
    "drop_low",
    "drop_high",
    "mcnemar_p",
    "holm_p",
    "floor",
    "normalised_drop",
    "reason",
)


def accuracy(inputs: Inputs) -> pd.DataFrame:
    """The table; holm_p corrects over the checkpoints that share task, format, probe and language."""
    rows: list[Row] = []
    for form in inputs.formats:
        with_base = paired(inputs, form)
        for setting in inputs.checkpoints:
            items = inputs.part(setting["checkpoint"], setting["task"], form)
            for probe in CORRECT:
                if items[f"{probe}_status"].notna().any():
                    pair = with_base.get((setting["task"], setting["checkpoint"]))
                    rows += _checkpoint_rows(inputs, setting, items, pair, form, probe)
    correct_for_many(rows, ("task", "format", "probe", "language"))
    return table_frame(rows, COLUMNS, _COUNTS)


def normalised(drop: float, dense: float, floor: float) -> tuple[float | None, str | None]:
    """Headroom-normalised drop, or the reason why it is undefined."""
    if dense <= floor:
        return None, f"dense accuracy {dense:.3f} is not above the floor {floor:.3f}"
    return drop / (dense - floor), None


def floor_of(items: pd.DataFrame, probe: str, side: str = "") -> float:
    """The accuracy that guessing gives: 0 for a generated answer, the mean of 1/K over the items for choice."""
    if probe == "greedy" or items.empty:
        return 0.0
    return float((1 / items[f"options{side}"].astype("float64")).mean())


def _checkpoint_rows(
    inputs: Inputs, setting: Row, items: pd.DataFrame, pair: Pair | None, form: str, probe: str
) -> list[Row]:
    rows = []
    languages = inputs.languages(setting["task"])
    for language, part in slices(items, languages):
        row = {**setting, "format": form, "probe": probe, "language": language, **_measured(part, probe)}
        if pair is not None:
            common = pair.items if language == ALL else pair.items[pair.items["language"] == language]
            drop = _paired(inputs, pair, common, probe)
            row |= drop | {"reason": joined_reasons(row["reason"], drop["reason"])}
        rows.append(row)
    done = items[items[f"{probe}_status"].isin(MEASURED)]
    if not done.empty:
        mean = {name: rows[0].get(name) for name in (*_IDENTITY, *_COUNTS)} | {"language": MEAN}
        mean |= _means(inputs, setting["task"], done, pair, probe)
        mean["reason"] = f"unweighted mean over {done['language'].nunique()} of {len(languages)} languages"
        rows.insert(1, mean)
    return rows


def _means(inputs: Inputs, task: str, done: pd.DataFrame, pair: Pair | None, probe: str) -> Row:
    """Means over the languages with measured items, and of the drop over those with items measured in both."""
    row: Row = {}
    for name, column in (_RATES[probe] | {"truncation": "truncated"}).items():
        known = done[done[column].notna()]
        row |= language_mean(inputs, task, known, **{name: truth(known[column])})
    if probe == "greedy":
        row["token_f1"] = float(done.groupby("language")["token_f1"].mean().mean())
    both = pair.measured(probe) if pair is not None else done.iloc[:0]
    if not both.empty:
        dense, pruned = (truth(both[f"{CORRECT[probe]}_{side}"]) for side in ("dense", "pruned"))
        row |= language_mean(inputs, task, both, dense_accuracy=dense, drop=dense - pruned)
    return row


def _measured(items: pd.DataFrame, probe: str) -> Row:
    done, row = measured(items, probe)
    n, cut = len(done), int(done["truncated"].sum())
    row |= {"truncated": cut, **rate("truncation", cut, n)}
    for name, column in _RATES[probe].items():
        known = done[column].dropna()
        row |= rate(name, int(known.sum()), len(known))
    if probe == "greedy" and n:
        f1 = done["token_f1"].dropna()
        row["token_f1"] = float(f1.mean()) if len(f1) else None
    return row


def _paired(inputs: Inputs, pair: Pair, common: pd.DataFrame, probe: str) -> Row:
    keep = [common[f"{probe}_status_{side}"].isin(MEASURED) for side in ("dense", "pruned")]
    items = common[keep[0] & keep[1]]
    n = len(items)
    if n == 0:
        return {"n_paired": 0, "reason": pair.reason or "no item is measured in both the checkpoint and its base"}
    dense, pruned = (truth(items[f"{CORRECT[probe]}_{side}"]) for side in ("dense", "pruned"))
    drop, floor = difference(inputs, pair.task, items, dense - pruned, "drop"), floor_of(items, probe, "_dense")
    relative, reason = normalised(drop["drop"], float(dense.mean()), floor)
    return {
        "n_paired": n,
        "dense_accuracy": float(dense.mean()),
        **drop,
        "mcnemar_p": paired_p(dense, pruned),
        "floor": floor,
        "normalised_drop": relative,
        "reason": reason,
    }
