"""`resurface report` and `resurface export`: a run's tables and page with the
headline, or another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.store.run_json import need_run
from launch.commands.options import RunDirectory
from launch.commands.terminal import console, empty_table, print_plain

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.report.results import Results
    from launch.run.decide.assignments import Outcome


def report(
    run: RunDirectory,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="also write report/paper.html: the paper's figures"
        ),
    ] = False,
) -> None:
    """Rebuild tables/ and report/ from the records alone."""
    need_run(run)
    results = finish(console, run)
    if paper:
        from evaluator.report.paper_page import write_paper_page

        page = write_paper_page(run, results)
        console.print(
            f"the paper's figures: {escape(str(page))}", highlight=False, soft_wrap=True
        )


def export(
    run: RunDirectory,
    lm_eval: Annotated[
        bool,
        typer.Option(
            "--lm-eval",
            help=(
                "required: results_*.json and samples_*.jsonl as lm-eval 0.4 writes"
                " them"
            ),
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="a folder (default: RUN/lm-eval)")
    ] = None,
) -> None:
    """Write a run's answers as files of lm-eval. --lm-eval is the only format, and
    required."""
    if not lm_eval:
        raise InputError("Missing option '--lm-eval': the format to write")
    need_run(run)
    from evaluator.store.lm_eval import export as write

    folder = out or run / "lm-eval"
    files = write(run, folder)
    print_plain(f"{len(files)} files in {folder}")


def finish(
    console: Console,
    run_dir: Path,
    outcome: Outcome | None = None,
    *,
    headline: bool = True,
) -> Results:
    """Write tables and report, print the headline. Raises ResurfaceError at the end
    if a plugin's table failed."""
    from evaluator.report import write_report

    report = write_report(run_dir)
    results = report.results
    if headline:
        _headline(console, results)
    if outcome is not None and outcome.items:
        print_plain(
            f"{outcome.items} items in {outcome.seconds:.1f} s:"
            f" {outcome.items / outcome.seconds:.1f} items/s, pruning and start"
            " included",
            console,
        )
    print_plain(f"report: {report.page}", console)
    if results.failures:
        raise ResurfaceError(
            f"{'; '.join(results.failures.values())}; the report has the other tables"
        )
    return results


def _headline(console: Console, results: Results) -> None:
    from evaluator.deciding.thresholds import spelled
    from evaluator.deciding.verdict_text import summary
    from evaluator.metrics.columns import rows_of
    from evaluator.metrics.headline import COLUMNS

    shown = [
        column
        for column in COLUMNS
        if column.short and results.headline[column.name].notna().any()
    ]
    for task, rows in results.headline.groupby("task", sort=False):
        # Short headings without units keep the table within 80 columns.
        table = empty_table(
            ["checkpoint", *(column.short for column in shown)], {"checkpoint"}
        )
        table.title = escape(f"{task}: what can it still say?")
        table.title_justify = "left"
        table.show_edge = False
        for row in rows_of(rows):
            table.add_row(
                escape(row["checkpoint"]),
                *(column.shown(row, narrow=True) for column in shown),
            )
        console.print(table)
        console.print()
    if results.missed:
        print_plain(results.missed, console)
    for column in shown:
        print_plain(f"{column.short:<8} {column.meaning}", console)
    print_plain(f"\n{results.sentence}", console)
    if results.verdicts:
        used = spelled(results.thresholds)
        print_plain(f"gate: {summary(results.verdicts)} ({used})", console)
    _left_out(console, results.left_out)
    _truncation(console, results.tables["accuracy"].frame)


def _left_out(console: Console, table: pd.DataFrame) -> None:
    """Print the unmeasured items, a line per reason. Each language counts the most
    items of any checkpoint."""
    from evaluator.metrics.inputs import ALL

    keys = ["task", "status", "reason", "format", "probe"]
    most = (
        table[table["language"] != ALL]
        .groupby([*keys, "language"], sort=False)["n"]
        .max()
        .reset_index()
    )
    lines: dict[str, list[str]] = {}
    for (task, status, reason, form, probe), group in most.groupby(keys, sort=False):
        word = "excluded" if status == "excluded" else "failed"
        counts = ", ".join(
            f"{row['language']} {row['n']}" for row in group.to_dict("records")
        )
        asked = f"{probe}" if form == "open" else f"{probe} of {form}"
        lines.setdefault(f"{task}: {word}, {reason}: {counts}", []).append(asked)
    for what, probes in lines.items():
        print_plain(f"{what} ({', '.join(probes)})", console)


def _truncation(console: Console, accuracy: pd.DataFrame) -> None:
    """Print the languages with contexts that were cut to fit the token cap."""
    keys = ["task", "format", "language"]
    cut = accuracy[
        (accuracy["probe"] == "greedy") & (accuracy["truncation"].astype("float64") > 0)
    ]
    rates = cut.groupby(keys, sort=False)["truncation"].max().reset_index()
    if rates.empty:
        return
    from evaluator.metrics.columns import rounded

    table = empty_table((*keys, "truncated"), keys, between=1)
    table.title = "contexts cut to fit the prompt's token cap"
    table.title_justify = "left"
    for row in rates.to_dict("records"):
        table.add_row(
            *(escape(row[name]) for name in keys),
            f"{rounded(100 * row['truncation'], 1)} %",
        )
    console.print(table)
