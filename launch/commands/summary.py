"""The end of a command: the report is built, the headline printed, and the reader told where to look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from evaluator.metrics import headline_sentence
from evaluator.metrics.inputs import ALL
from evaluator.report import write_report
from launch.run.work import Outcome

# headline column -> what the terminal calls it; short, so that the table fits 80 columns
_HEADLINE = {
    "open_accuracy": "open",
    "choice_accuracy": "choice",
    "known": "known",
    "kept": "kept",
    "mc_only": "mc_only",
    "lost": "lost",
    "beam_recoverability": "beams",
    "sample_recoverability": "samples",
    "mc_only_median_rank": "rank",
}
_COUNTS = ("known", "mc_only_median_rank")


def finish(console: Console, run_dir: Path, outcome: Outcome | None = None) -> None:
    """Build tables and report from records, print the headline table."""
    paths = write_report(run_dir)
    for task, rows in paths.headline.groupby("task", sort=False):
        console.print(_headline(str(task), rows))
    console.print(f"{escape(headline_sentence(paths.headline))}", highlight=False, soft_wrap=True)
    if "left_out" in paths.tables:
        _left_out(console, pd.read_csv(paths.tables["left_out"]))
    _truncation(console, pd.read_csv(paths.tables["accuracy"]))
    if outcome is not None and outcome.items:
        console.print(
            f"{outcome.items} items in {outcome.seconds:.1f} s: {outcome.items / outcome.seconds:.1f} items/s, "
            "pruning and start included",
            highlight=False,
        )
    console.print(f"report: {escape(str(paths.page))}", highlight=False, soft_wrap=True)


def _headline(task: str, rows: pd.DataFrame) -> Table:
    table = Table(
        title=f"{task}: what can it still say? (percent; rank: median, of mc_only)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0),
        pad_edge=False,
    )
    table.add_column("checkpoint", overflow="fold")  # a long name takes two lines; a number is never cut short
    shown = {column: name for column, name in _HEADLINE.items() if rows[column].notna().any()}
    for name in shown.values():
        table.add_column(name, justify="right", no_wrap=True)
    for _, row in rows.iterrows():
        table.add_row(str(row["checkpoint"]), *(_cell(row[column], column) for column in shown))
    return table


def _cell(value: Any, column: str) -> str:
    if pd.isna(value):
        return "-"
    return f"{value:g}" if column in _COUNTS else f"{100 * value:.1f}"


def _left_out(console: Console, table: pd.DataFrame) -> None:
    """What was not measured and why, a line per reason: by language the most items that any checkpoint has of it."""
    keys = ["task", "status", "reason", "format", "probe"]
    most = table[table["language"] != ALL].groupby([*keys, "language"], sort=False)["n"].max().reset_index()
    lines: dict[str, list[str]] = {}
    for (task, status, reason, form, probe), group in most.groupby(keys, sort=False):
        word = "excluded" if status == "excluded" else "failed"
        counts = ", ".join(f"{row['language']} {row['n']}" for row in group.to_dict("records"))
        asked = f"{probe}" if form == "open" else f"{probe} of {form}"
        lines.setdefault(f"{task}: {word}, {reason}: {counts}", []).append(asked)
    for what, probes in lines.items():
        console.print(f"{what} ({', '.join(probes)})", highlight=False, markup=False, soft_wrap=True)


def _truncation(console: Console, accuracy: pd.DataFrame) -> None:
    """Which languages' contexts were cut to fit the token cap, when any were."""
    cut = accuracy[(accuracy["probe"] == "greedy") & (accuracy["truncation"].fillna(0) > 0)]
    rates = cut.groupby(["task", "format", "language"], sort=False)["truncation"].max()
    if rates.empty:
        return
    table = Table(title="contexts cut to fit the prompt's token cap", title_justify="left")
    for column in ("task", "format", "language"):
        table.add_column(column)
    table.add_column("truncated", justify="right")
    for row in rates.reset_index().to_dict("records"):
        table.add_row(row["task"], row["format"], row["language"], f"{100 * row['truncation']:.1f} %")
    console.print(table)
