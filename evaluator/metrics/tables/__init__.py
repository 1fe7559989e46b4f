"""The tables of the report, by subject. To add one, write a `Table` in a module of
its subject and add a line here."""

from evaluator.core.config import Registry
from evaluator.core.errors import one_line
from evaluator.metrics.columns import rows_of, typed_frame
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import FilledTable, Table
from evaluator.metrics.tables import (
    accuracy,
    candidates,
    fates,
    fertility,
    fidelity,
    grading,
    judges,
    ladder,
    length_of_context,
    matching,
    overlap,
    price,
    prompt_order,
    prompts,
    question_kinds,
    rank,
    recovery,
    thinking,
    vote,
)

# In the order of the report.
TABLES: Registry[Table] = Registry(
    "table",
    (
        accuracy.TABLE,
        fates.FATES_TABLE,
        fates.FLIPS,
        fates.RECOVERY_PERCENT,
        fertility.LENGTH,
        thinking.TABLE,
        ladder.TABLE,
        recovery.TABLE,
        rank.TABLE,
        ladder.PR_GAP,
        candidates.TABLE,
        candidates.DISTRACTORS,
        candidates.HARD_DISTRACTORS,
        recovery.RECOVERY_SEEDS,
        prompts.ONE_SHOT,
        accuracy.CALIBRATION,
        fertility.TABLE,
        fidelity.PERPLEXITY_TABLE,
        fidelity.TABLE,
        grading.TABLE,
        matching.TABLE,
        judges.TABLE,
        prompts.TABLE,
        prompt_order.TABLE,
        length_of_context.TABLE,
        question_kinds.TABLE,
        vote.TABLE,
        overlap.TABLE,
        price.TABLE,
        accuracy.SCREENING,
    ),
)


def compute_tables(inputs: Inputs) -> dict[str, FilledTable]:
    """Every registered table, in the report's order."""
    return {table.name: fill(table, inputs) for table in TABLES}


def fill(table: Table, inputs: Inputs) -> FilledTable:
    """A table without its inputs is empty and names its needs. A plugin's table that
    fails is empty too."""
    home = str(getattr(table.compute, "__module__", None) or "a plugin")
    ours = home.partition(".")[0] == __name__.partition(".")[0]
    try:
        filled = table.fill(inputs)
        for row in () if ours else (*rows_of(filled.frame), *rows_of(filled.shown)):
            for column in table.columns:
                column.shown(row)
                column.interval_of(row)
        return filled
    except Exception as error:  # a plugin is anybody's code
        if ours:
            raise
        why = (
            f"table {table.name!r} of plugin {home} failed: {type(error).__name__}:"
            f" {one_line(error)}"
        )
        return FilledTable(table, typed_frame(table.columns, ()), why, failed=True)
