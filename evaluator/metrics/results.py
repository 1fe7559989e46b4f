"""Everything that a run's records say: the tables, the headline, what was left out, the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evaluator.errors import one_line
from evaluator.metrics.columns import rows_of, typed_frame
from evaluator.metrics.gate import CRITERIA, Verdict, decide
from evaluator.metrics.headline import headline_of, headline_sentence, screened_sentence
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.left_out import left_out
from evaluator.metrics.published import published
from evaluator.metrics.table import FilledTable, Table
from evaluator.metrics.tables import TABLES
from evaluator.thresholds import Thresholds, thresholds_of


@dataclass(frozen=True, eq=False)
class Results:
    """The numbers of a run. `left_out` and `paper` may be empty: all was measured, no setting is the paper's."""

    tables: Mapping[str, FilledTable]
    headline: pd.DataFrame
    left_out: pd.DataFrame
    paper: pd.DataFrame
    verdicts: Sequence[Verdict] = ()  # of each compressed checkpoint on each task
    screened: str = ""  # which of them were asked a few items only

    @property
    def sentence(self) -> str:
        """The finding, and whose numbers are of a few items only."""
        return " ".join(filter(None, (headline_sentence(self.headline), self.screened)))

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """What is written as CSV, by name."""
        whole = {name: table.frame for name, table in self.tables.items() if not table.failed}
        found = {"headline": self.headline} | whole
        where_any = {"left_out": self.left_out, "reference": self.paper}
        return found | {name: frame for name, frame in where_any.items() if not frame.empty}

    @property
    def failures(self) -> dict[str, str]:
        """How tables failed, by name."""
        return {name: table.note for name, table in self.tables.items() if table.failed}


def compute_tables(inputs: Inputs) -> dict[str, FilledTable]:
    """Every registered table, in the report's order. A table without its inputs is empty and says what it needs, and so
    is a plugin's that fails: the others appear without it."""
    return {table.name: _filled(table, inputs) for table in TABLES}


def _filled(table: Table, inputs: Inputs) -> FilledTable:
    home = str(getattr(table.compute, "__module__", None) or "a plugin")
    if home.partition(".")[0] == __name__.partition(".")[0]:
        return table.fill(inputs)
    try:
        filled = table.fill(inputs)
        for row in [*rows_of(filled.frame), *rows_of(filled.shown)]:
            for column in table.columns:
                column.shown(row)
                column.interval_of(row)
    except Exception as error:  # a plugin is anybody's code
        why = f"table {table.name!r} of plugin {home} failed: {type(error).__name__}: {one_line(error)}"
        return FilledTable(table, typed_frame(table.columns, ()), why, failed=True)
    return filled


def compute(inputs: Inputs, run: Mapping[str, Any]) -> Results:
    """Everything; `run` is the content of run.json, which says what a setting is."""
    tables = compute_tables(inputs)
    frames = {name: table.frame for name, table in tables.items()}
    verdicts = _judged(inputs, frames, thresholds_of(run, "run.json"))
    screened = screened_sentence(frames["screening"])
    return Results(tables, headline_of(frames), left_out(inputs), published(frames, run), verdicts, screened)


def judge(inputs: Inputs, thresholds: Thresholds) -> list[Verdict]:
    """The verdicts alone, from the tables that they need."""
    needed = {each.table for each in CRITERIA if each.table in TABLES}
    return _judged(inputs, {name: TABLES[name].frame(inputs) for name in needed}, thresholds)


def _judged(inputs: Inputs, frames: Mapping[str, pd.DataFrame], thresholds: Thresholds) -> list[Verdict]:
    return decide(frames, thresholds, inputs.incomparable, inputs.screened_out)
