"""The tables of the report, by subject. To add one, write a `Table` in a module of
its subject and add a line here."""

from collections.abc import Callable

import pandas as pd

from evaluator.core.config import Registry
from evaluator.core.errors import one_line
from evaluator.metrics.columns import rows_of
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.table import FilledTable, Table, numbers_of
from evaluator.metrics.tables import (
    accuracy,
    calibration,
    candidates,
    distractors,
    fates,
    fertility,
    fidelity,
    flips,
    grading,
    ladder,
    length,
    length_of_context,
    matching,
    noise,
    one_shot,
    perplexity,
    pr_gap,
    price,
    prompts,
    rank,
    recovery,
    recovery_percent,
    suite,
    thinking,
)

# In the order of the report.
TABLES: Registry[Table] = Registry(
    "table",
    (
        accuracy.TABLE,
        suite.TABLE,
        fates.TABLE,
        flips.TABLE,
        recovery_percent.TABLE,
        length.TABLE,
        thinking.TABLE,
        ladder.TABLE,
        recovery.TABLE,
        rank.TABLE,
        pr_gap.TABLE,
        candidates.TABLE,
        distractors.DISTRACTORS,
        distractors.HARD_DISTRACTORS,
        recovery.RECOVERY_SEEDS,
        recovery.SEEDS,
        one_shot.TABLE,
        calibration.TABLE,
        fertility.TABLE,
        perplexity.TABLE,
        fidelity.TABLE,
        noise.TABLE,
        grading.TABLE,
        grading.EXTRACTION,
        matching.TABLE,
        prompts.TABLE,
        length_of_context.TABLE,
        price.TABLE,
    ),
)


Tell = Callable[[str], None]  # of a step that begins
Show = Callable[[Table, pd.DataFrame], object]


def untold(step: str) -> None:
    """For steps that nobody reads of."""


def compute_tables(
    inputs: Inputs, tell: Tell = untold, show: Show | None = None
) -> dict[str, FilledTable]:
    """Every registered table, in the report's order."""
    filled = {}
    for table in TABLES:
        tell(f"table {table.name}")
        filled[table.name] = fill(table, inputs, show)
    return filled


def fill(table: Table, inputs: Inputs, show: Show | None = None) -> FilledTable:
    """A table without its inputs is empty and names its needs. A plugin's table that
    fails is empty too; `show` draws it, to see whether that fails."""
    home = str(getattr(table.compute, "__module__", None) or "a plugin")
    ours = home.partition(".")[0] == __name__.partition(".")[0]
    try:
        filled = table.fill(inputs)
        if not ours:  # whether all of it can be shown
            for row in (*filled.rows, *rows_of(filled.shown)):
                for column in table.columns:
                    column.shown(row)
                    column.interval_of(row)
            numbers_of([filled])
            if show:
                show(table, filled.shown)
        return filled
    except Exception as error:  # a plugin is anybody's code
        if ours:
            raise
        why = (
            f"table {table.name!r} of plugin {home} failed: {type(error).__name__}:"
            f" {one_line(error)}"
        )
        return FilledTable(table, [], why, failed=True)
