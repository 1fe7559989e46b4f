"""Table `screening`: which checkpoints were asked a few items only, as they were surely worse, and what says so.

A row is of one checkpoint on one task: how it did on its anchors, beside what it is worse than, and what the difference
surely is (`evaluator.metrics.screening`). Of those that stay it shows what comes nearest. The numbers are those that
were decided by when it was decided, from run.json; those of other tables are of all records that there are.
"""

from __future__ import annotations

from evaluator.metrics.columns import COUNT, PERCENTAGE, POINTS, REASON, SHARE, TEXT, Column, Row, columns_of
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import Table
from evaluator.store.screening import screened_of

_COUNTS = ("anchors", "asked", "items", "n")
_COPIED = (
    *("task", "checkpoint", "base", "measure", *_COUNTS, "accuracy", "reference", "reference_accuracy"),
    *("difference", "margin", "confidence", "level"),
)


def _rows(inputs: Inputs) -> list[Row]:
    """Those that are out first."""
    rows: list[Row] = []
    for each in sorted(screened_of(inputs.run), key=lambda each: (each.task, each.base, not each.out)):
        row: Row = {name: getattr(each, name) for name in _COPIED}
        row |= {"decision": "screened out" if each.out else "asked everything"}
        rows.append(row | {"difference_low": each.low, "difference_high": each.high})
    return rows


TABLE = Table(
    name="screening",
    title="Screened out: what was surely worse, and is asked no more?",
    reading=(
        "Every compressed checkpoint was asked its anchors first, a few items drawn by what the base did with them. "
        "One that is surely worse than another checkpoint, or has surely lost more than the gate allows, is screened "
        "out: it was asked nothing else, and every number of it is of these items alone. The difference is by how much "
        "the reference is right more often; a checkpoint is out when its lower bound is above the margin. The "
        "confidence is that of all decisions of a task together, about what all items would have said; the level is "
        "what is left of it for one comparison."
    ),
    needs="screen: in the sweep file",
    columns=(
        *columns_of(TEXT, "task", "checkpoint", "base", "decision", "measure"),
        *columns_of(COUNT, *_COUNTS),
        Column("accuracy", PERCENTAGE),
        Column("reference", TEXT),
        Column("reference_accuracy", PERCENTAGE),
        Column("difference", POINTS, interval=True),
        Column("margin", POINTS),
        *columns_of(SHARE, "confidence", "level"),
        REASON,
    ),
    compute=_rows,
    silent=True,
)
