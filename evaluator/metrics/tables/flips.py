"""Table `flips`: how many answers changed, even if the accuracy did not (Dutta et al.,
arXiv 2407.09141).

A flip is an item that was right in the base and is wrong here, or the reverse. Items
that are wrong in both, with different answers, have their own column. Greedy answers
are compared like texts in grading, choices by the option with the highest score.
`margin` splits the pooled items into thirds by the base's confidence, in nats: the mean
log-probability of a greedy answer's tokens, or the score of the gold option minus the
best other one's.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from evaluator.metrics.columns import (
    BY_LANGUAGE,
    COUNT,
    MCNEMAR,
    NATS,
    PERCENTAGE,
    TEXT,
    Column,
    Row,
)
from evaluator.metrics.fates import CORRECT, paired_row, sides_of
from evaluator.metrics.inputs import ALL, Comparison, Inputs, Part
from evaluator.metrics.intervals import Floats, mcnemar_p
from evaluator.metrics.measures import as_floats, rate
from evaluator.metrics.table import LACKS, Bars, Holm, Table

THIRDS = ("lowest", "middle", "highest")
KINDS = ("right_to_wrong", "wrong_to_right", "wrong_to_other")
ANSWER = {"greedy": "answer_said", "choice": "picked"}  # columns that identify it


def _rows(inputs: Inputs) -> Iterator[Row]:
    """Per checkpoint with a base and probe: pooled, in thirds by the base's margin,
    and by language."""
    for comparison in inputs.comparisons().values():
        for probe in CORRECT:
            if comparison.tells_of(probe):
                pooled, *by_language = comparison.parts(comparison.measured(probe))
                yield _row(pooled, probe)
                for third in _thirds(comparison, probe):
                    yield pooled.row | {"probe": probe} | third
                for part in by_language:
                    yield _row(part, probe)


def _row(part: Part, probe: str) -> Row:
    row = paired_row(part, probe) | {"probe": probe, "margin": ALL}
    return row | changes_in(part.items, probe)


def _thirds(comparison: Comparison, probe: str) -> Iterator[Row]:
    items = comparison.measured(probe)
    margins = _margins(items, probe)
    items, margins = items[~np.isnan(margins)], margins[~np.isnan(margins)]
    if len(items) >= len(THIRDS):
        order = np.argsort(margins, kind="stable")
        for name, third in zip(THIRDS, np.array_split(order, 3), strict=True):
            here = np.sort(third)
            yield {
                "margin": name,
                "n": len(here),
                "margin_from": margins[here].min(),
                "margin_to": margins[here].max(),
                **changes_in(items.iloc[here], probe),
            }


def _margins(items: pd.DataFrame, probe: str) -> Floats:
    """The base's confidence in its answer to each item, in nats."""
    if probe == "choice":
        return np.abs(as_floats(items["choice_margin_dense"]))
    tokens = as_floats(items["answer_tokens_dense"])
    return as_floats(items["answer_logprob_dense"]) / tokens


def changes_in(items: pd.DataFrame, probe: str) -> Row:
    """How many answers of a probe changed, and how; all are measured."""
    dense, pruned = sides_of(items, CORRECT[probe])
    before, after = sides_of(items, ANSWER[probe])
    row: Row = {
        "flips": int((dense != pruned).sum()),
        "mcnemar_p": mcnemar_p(dense, pruned),
        **rate("flip_rate", dense != pruned, items),
    }
    changes = {
        "right_to_wrong": dense > pruned,
        "wrong_to_right": dense < pruned,
        "wrong_to_other": (dense + pruned == 0) & (before != after),
    }
    for name, flags in changes.items():
        row |= {name: int(flags.sum()), **rate(f"{name}_rate", flags, items)}
    return row


_PAINTS = {
    "right_to_wrong": ("lost", 1.0),
    "wrong_to_right": ("kept", 1.0),
    "wrong_to_other": ("muted", 0.35),
}
_PARTS = {
    f"{name}_rate": (name.replace("_", " "), *paint) for name, paint in _PAINTS.items()
}

TABLE = Table(
    name="flips",
    title="How many answers changed?",
    reading=(
        "Flips are items that changed from right to wrong, or from wrong to right."
        " Accuracy shows only their difference. wrong to other: wrong in both"
        " checkpoints, with another answer. margin splits the pooled items into thirds"
        " by the base's confidence in its answer, in nats. Flips are harmless noise"
        " only if they stay in the lowest third."
    ),
    needs="the probe greedy or choice on a checkpoint and its base",
    columns=(
        *BY_LANGUAGE,
        *TEXT("probe", "margin"),
        *NATS("margin_from", "margin_to"),
        *COUNT("n", "excluded", "engine_error", "unpaired", "flips", *KINDS),
        *PERCENTAGE.estimates("flip_rate", p="mcnemar_p"),
        *(
            Column(f"{name}_rate", PERCENTAGE, name.replace("_", " "), interval=True)
            for name in KINDS
        ),
        *MCNEMAR,
    ),
    compute=_rows,
    figure=tuple(
        Bars(title, _PARTS, {"probe": probe})
        for probe, title in (
            ("greedy", "Open answers that changed, %"),
            ("choice", "Choices that changed, %"),
        )
    ),
    plotted=lambda frame: frame[(frame["margin"] == ALL) & (frame["n"] > 0)],
    corrections=(Holm(("task", "language", "probe", "margin")),),
    lacks=LACKS,
)
