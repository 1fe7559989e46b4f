"""Table `screening`: at which look the gate stopped evaluating each checkpoint of a screened sweep."""

from __future__ import annotations

from evaluator.metrics.columns import COUNT, PERCENTAGE, REASON, TEXT, Row, columns_of
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.looks import BLOCK_LEVEL, PASS_LEVEL, nominal
from evaluator.metrics.table import Table
from evaluator.store.screening import screened_of


def _rows(inputs: Inputs) -> list[Row]:
    """Those that stopped early first."""
    return [
        {
            **{name: getattr(each, name) for name in ("task", "checkpoint", "base", "decision", "asked", "items")},
            "look": sum(size <= each.asked for size in each.looks),
            "looks": len(each.looks),
            "pass_level": nominal(PASS_LEVEL, each.looks),
            "block_level": nominal(BLOCK_LEVEL, each.looks),
        }
        for each in sorted(screened_of(inputs.run), key=lambda each: (each.task, each.base, not each.early))
    ]


TABLE = Table(
    name="screening",
    title="Decided early: which checkpoints needed only some of the items?",
    reading=(
        "The gate judged a checkpoint's first items, and then more, until it could pass or block it. Each look has "
        "a smaller level than a single look would have, so the error over all looks is the gate's. A row shows the "
        "last look, its verdict, and the levels of one look: of a pass, and of a block before its correction for "
        "the number of criteria and languages. Every number of a checkpoint that stopped early describes its first "
        "items alone."
    ),
    needs="screen: in the sweep file",
    columns=(
        *columns_of(TEXT, "task", "checkpoint", "base", "decision"),
        *columns_of(COUNT, "look", "looks", "asked", "items"),
        *columns_of(PERCENTAGE, "pass_level", "block_level"),
        REASON,
    ),
    compute=_rows,
    counts="asked",
    silent=True,
)
