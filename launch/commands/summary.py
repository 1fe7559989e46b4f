"""The end of a command: builds the report, prints the headline and the report's path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluator.core.errors import ResurfaceError
from evaluator.deciding.words import summary
from evaluator.metrics.columns import Column, rounded, rows_of
from evaluator.metrics.headline import COLUMNS
from evaluator.metrics.inputs import ALL
from evaluator.report import write_report
from launch.run.decide.assignments import Outcome


def finish(console: Console, run_dir: Path, outcome: Outcome | None = None) -> None:
    """Build tables and report from records, and print the headline table.

    Raises ResurfaceError at the end if a plugin's table failed.
    """
    report = write_report(run_dir)
    results = report.results
    shown = [column for column in COLUMNS if column.short and results.headline[column.name].notna().any()]
    for task, rows in results.headline.groupby("task", sort=False):
        console.print(_headline(str(task), rows, shown))
        console.print()
    if results.missed:
        console.print(results.missed, highlight=False, markup=False, soft_wrap=True)
    for column in shown:
        console.print(f"{column.short:<8} {column.meaning}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"\n{escape(results.sentence)}", highlight=False, soft_wrap=True)
    if results.verdicts:
        console.print(f"gate: {escape(summary(results.verdicts))}", highlight=False, soft_wrap=True)
    _left_out(console, results.left_out)
    _truncation(console, results.tables["accuracy"].frame)
    if outcome is not None and outcome.items:
        console.print(
            f"{outcome.items} items in {outcome.seconds:.1f} s: {outcome.items / outcome.seconds:.1f} items/s, "
            "pruning and start included",
            highlight=False,
        )
    console.print(f"report: {escape(str(report.page))}", highlight=False, soft_wrap=True)
    if results.failures:
        raise ResurfaceError(f"{'; '.join(results.failures.values())}; the report has the other tables")


def _headline(task: str, rows: pd.DataFrame, shown: Sequence[Column]) -> Table:
    """The checkpoints of one task. Short headings without units keep the table within 80 columns."""
    table = Table(
        title=escape(f"{task}: what can it still say?"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 0),
        pad_edge=False,
    )
    table.add_column("checkpoint", overflow="fold")  # a long name takes two lines; a number is never cut short
    for column in shown:
        table.add_column(column.short, justify="right", no_wrap=True)
    for row in rows_of(rows):
        table.add_row(escape(row["checkpoint"]), *(column.shown(row, narrow=True) for column in shown))
    return table


def _left_out(console: Console, table: pd.DataFrame) -> None:
    """Print the unmeasured items, a line per reason. Each language counts the most items of any checkpoint."""
    keys = ["task", "status", "reason", "format", "probe"]
    most = _most(table[table["language"] != ALL], *keys, "language", of="n")
    lines: dict[str, list[str]] = {}
    for (task, status, reason, form, probe), group in most.groupby(keys, sort=False):
        word = "excluded" if status == "excluded" else "failed"
        counts = ", ".join(f"{row['language']} {row['n']}" for row in group.to_dict("records"))
        asked = f"{probe}" if form == "open" else f"{probe} of {form}"
        lines.setdefault(f"{task}: {word}, {reason}: {counts}", []).append(asked)
    for what, probes in lines.items():
        console.print(f"{what} ({', '.join(probes)})", highlight=False, markup=False, soft_wrap=True)


def _most(table: pd.DataFrame, *keys: str, of: str) -> pd.DataFrame:
    return table.groupby([*keys], sort=False)[of].max().reset_index()


def _truncation(console: Console, accuracy: pd.DataFrame) -> None:
    """Print the languages with contexts that were cut to fit the token cap."""
    keys = ("task", "format", "language")
    cut = accuracy[(accuracy["probe"] == "greedy") & (accuracy["truncation"].astype("float64") > 0)]
    rates = _most(cut, *keys, of="truncation")
    if rates.empty:
        return
    table = Table(title="contexts cut to fit the prompt's token cap", title_justify="left")
    for column in keys:
        table.add_column(column)
    table.add_column("truncated", justify="right")
    for row in rates.to_dict("records"):
        table.add_row(*(escape(row[name]) for name in keys), f"{rounded(100 * row['truncation'], 1)} %")
    console.print(table)
