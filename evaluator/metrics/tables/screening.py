"""Table `screening`: at which look the gate stopped evaluating each checkpoint of a
screened sweep."""

from collections.abc import Iterator

from evaluator.metrics.columns import COUNT, PERCENTAGE, TEXT, Row
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.sequential_looks import BLOCK_LEVEL, PASS_LEVEL, nominal
from evaluator.metrics.table import Table
from evaluator.store.run_json import screened_of


def _rows(inputs: Inputs) -> Iterator[Row]:
    decided = {(row.task, row.checkpoint): row for row in screened_of(inputs.run)}
    order = dict.fromkeys([*(each.key for each in inputs.checkpoints), *decided])
    ordered = [decided[key] for key in order if key in decided]
    # within a task and base, those that stopped early first
    ordered.sort(key=lambda row: (row.task, row.base, not row.early))
    for each in ordered:
        yield {
            "task": each.task,
            "checkpoint": each.checkpoint,
            "base": each.base,
            "decision": each.decision,
            "asked": each.asked,
            "items": each.items,
            "look": sum(size <= each.asked for size in each.looks),
            "looks": len(each.looks),
            "pass_level": nominal(PASS_LEVEL, each.looks),
            "block_level": nominal(BLOCK_LEVEL, each.looks),
        }


TABLE = Table(
    name="screening",
    title="Decided early: which checkpoints needed only some of the items?",
    reading=(
        "The gate judged a checkpoint's first items, and then more, until it could pass"
        " or block it. Each look has a smaller level than a single look would have, so"
        " the error over all looks is the gate's. A row shows the last look, its"
        " verdict, and the levels of one look: of a pass, and of a block before its"
        " correction for the number of criteria and languages. Every number of a"
        " checkpoint that stopped early describes its first items alone."
    ),
    needs="screen: in the sweep file",
    columns=(
        *TEXT("task", "checkpoint", "base", "decision"),
        *COUNT("look", "looks", "asked", "items"),
        *PERCENTAGE("pass_level", "block_level"),
    ),
    compute=_rows,
    counts="asked",
    silent=True,
)
