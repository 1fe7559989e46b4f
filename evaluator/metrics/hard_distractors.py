"""Table `hard_distractors`: does recognition survive options that look like the answer?

Both kinds of choice are compared on the items measured with both. The dissociation rates are over one set too: what
the dense model produced and recognised among the standard and among the hard distractors alike, so that they differ by
what the pruned model recognises and by nothing else.
"""

from __future__ import annotations

import pandas as pd

from evaluator.metrics.counting import joined_reasons, measured
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

_RECOGNISED = {"standard": "recognised", "hard": "hard_recognised"}
NEEDS_GREEDY = "needs the probe greedy on a checkpoint and its base (for the dissociation rates)"
_COUNTS = ("n", "excluded", "engine_error", "known")
COLUMNS = (
    *("task", "checkpoint", "base", *SETTING, "language"),
    *_COUNTS[:-1],
    *(f"{kind}_accuracy{end}" for kind in _RECOGNISED for end in ("", "_low", "_high")),
    *("difference", "difference_low", "difference_high", "mcnemar_p", "holm_p", "known"),
    *(f"{kind}_dissociation{end}" for kind in _RECOGNISED for end in ("", "_low", "_high")),
    *("dissociation_difference", "dissociation_difference_low", "dissociation_difference_high", "reason"),
)


def hard_distractors(inputs: Inputs) -> pd.DataFrame:
    """The table; differences are hard minus standard, `known` is n of the dissociation rates."""
    with_base = paired(inputs)
    rows: list[Row] = []
    for setting in inputs.checkpoints:
        items = inputs.part(setting["checkpoint"], setting["task"], "open")
        if not items["hard_choice_status"].notna().any():
            continue
        for language, part in slices(items, inputs.languages(setting["task"])):
            row = {**setting, "language": language, **_accuracies(inputs, setting["task"], part)}
            pair = with_base.get((setting["task"], setting["checkpoint"]))
            if pair is not None:
                row |= _dissociations(inputs, pair, language)
                said = pair.items[["greedy_status_dense", "greedy_status_pruned"]].notna().all(axis=1).any()
                unsaid = None if said or pair.reason else NEEDS_GREEDY
                row["reason"] = joined_reasons(pair.reason, unsaid, row["reason"])
            rows.append(row)
    correct_for_many(rows, ("task", "language"))
    return table_frame(rows, COLUMNS, _COUNTS)


def _accuracies(inputs: Inputs, task: str, items: pd.DataFrame) -> Row:
    nothing = "no item was measured with both choice and hard_choice"
    done, row = measured(items, "choice", "hard_choice", nothing=nothing)
    for kind, column in _RECOGNISED.items():
        row |= rate(f"{kind}_accuracy", int(done[column].sum()), len(done))
    hard, standard = truth(done["hard_recognised"]), truth(done["recognised"])
    return row | difference(inputs, task, done, hard - standard, "difference") | {"mcnemar_p": paired_p(hard, standard)}


def _dissociations(inputs: Inputs, pair: Pair, language: str) -> Row:
    both = pair.measured("greedy", "choice", "hard_choice")
    if language != ALL:
        both = both[both["language"] == language]
    known = both[(both[["produced_dense", "recognised_dense", "hard_recognised_dense"]] == 1).all(axis=1)]
    silent = truth(known["produced_pruned"]) == 0
    mc_only = {kind: silent * truth(known[f"{column}_pruned"]) for kind, column in _RECOGNISED.items()}
    row: Row = {"known": len(known)}
    for kind, values in mc_only.items():
        row |= rate(f"{kind}_dissociation", int(values.sum()), len(known))
    return row | difference(inputs, pair.task, known, mc_only["hard"] - mc_only["standard"], "dissociation_difference")
