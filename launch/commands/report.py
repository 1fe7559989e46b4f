"""`resurface report` and `resurface export`: a run's tables and page with the
headline, or another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from evaluator.core.errors import InputError, ResurfaceError, counted, lasting, unknown
from evaluator.store.run_json import need_run
from launch.commands.options import RunDirectory
from launch.commands.terminal import (
    AsJson,
    console,
    empty_table,
    errors,
    print_json,
    print_plain,
    warn,
)

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.report.results import Results
    from launch.run.decide.assignments import Outcome


def report(
    run: RunDirectory,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="also write report/paper.html and .csv: the paper's figures"
        ),
    ] = False,
    sign_off: Annotated[
        bool,
        typer.Option("--sign-off", help="also write report/sign-off.html: one page"),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild tables/ and report/ from the records alone."""
    need_run(run)
    results = finish(run)
    if paper:
        from evaluator.report.paper_page import write_paper_page

        page = write_paper_page(run, results)
        print_plain(f"the paper's figures: {page}")
    if sign_off:
        from evaluator.report.card import write_sign_off

        print_plain(f"the page to sign: {write_sign_off(run, results)}")
    if as_json:
        from evaluator.deciding.verdict_text import in_short
        from evaluator.metrics.columns import plain_rows
        from launch.documents import Report

        document = Report(
            run=str(run),
            page=str(run / "report" / "index.html"),
            sentence=results.sentence,
            headline=plain_rows(results.headline),
            verdicts=[*map(in_short, results.verdicts)],
        )
        print_json(document)


def export(
    run: RunDirectory,
    to: Annotated[
        str,
        typer.Option(
            "--to", help="card: Markdown for a model's page, and its figure as SVG"
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="a new file")],
) -> None:
    """Write a run as a card for people."""
    if to != "card":
        raise unknown("--to format", to, ["card"])
    if out.exists():
        raise InputError(f"--out: {out} exists; name another place, or remove it")
    need_run(run)
    from evaluator.report.card import write_card

    files = write_card(run, out)
    print_plain(f"{counted(len(files), 'file')}: {out}")


def finish(
    run_dir: Path, outcome: Outcome | None = None, *, headline: bool = True
) -> Results:
    """Write tables and report, print the headline. Raises ResurfaceError at the end
    if a plugin's table failed."""
    from evaluator.report import write_report
    from launch.run.work.progress import Steps

    with Steps(print_plain, "report:", "records") as step:
        report = write_report(run_dir, step)
    for note in report.notes:
        warn(note, errors)
    results = report.results
    if headline:
        _headline(results)
    if outcome is not None and outcome.items:
        print_plain(
            f"{outcome.items} items in {lasting(outcome.seconds)}:"
            f" {outcome.items / outcome.seconds:.1f} items/s, pruning and start"
            " included"
        )
    print_plain(f"report: {report.page}")
    if results.failures:
        raise ResurfaceError(
            f"{'; '.join(results.failures.values())}; the report has the other tables"
        )
    return results


def _headline(results: Results) -> None:
    from evaluator.deciding.verdict_text import summary
    from evaluator.metrics.columns import rows_of
    from evaluator.metrics.headline import COLUMNS
    from evaluator.metrics.tables.suite import MEANS

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
    for remark in results.remarks:
        print_plain(remark)
    suite = results.tables["suite"]
    for row in suite.rows:
        means = [
            f"{column.heading} {column.shown(row)}"
            for column in suite.table.columns
            if column.name in MEANS and row[column.name] is not None
        ]
        print_plain(f"{row['checkpoint']}, suite {row['task']}: {', '.join(means)}")
    for column in shown:
        print_plain(f"{column.short:<11} {column.meaning}")
    print_plain(f"\n{results.sentence}")
    if results.verdicts:
        print_plain(f"gate: {summary(results.verdicts)} ({results.tolerances})")
    _left_out(results.left_out)
    _truncation(results.tables["accuracy"].frame)


def _left_out(table: pd.DataFrame) -> None:
    """Print the unmeasured items, a line per reason. Each language counts the most
    items of any checkpoint."""
    from evaluator.metrics.items import ALL

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
        print_plain(f"{what} ({', '.join(probes)})")


def _truncation(accuracy: pd.DataFrame) -> None:
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
        share = f"{rounded(100 * row['truncation'], 1)} %"
        table.add_row(*(escape(row[name]) for name in keys), share)
    console.print(table)
