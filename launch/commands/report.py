"""`resurface report` and `resurface export`: a run's tables and page, or another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.errors import InputError
from launch.commands.terminal import console


def report(run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")]) -> None:
    """Rebuild tables/ and report/ from the records alone."""
    need_records(run)
    from launch.commands.summary import finish

    finish(console, run)


def need_records(run: Path) -> None:
    """Raises InputError if `run` is not a run directory."""
    if not (run / "records").is_dir():
        raise InputError(f"{run}: not a run directory: it has no records/")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run directory")],
    lm_eval: Annotated[
        bool, typer.Option("--lm-eval", help="results_*.json and samples_*.jsonl as lm-eval 0.4 writes them")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="a folder (default: RUN/lm-eval)")] = None,
) -> None:
    """Write a run's answers in another tool's format."""
    if not lm_eval:
        raise InputError("Missing option '--lm-eval': the format to write")
    need_records(run)
    from evaluator.report.lm_eval import export as write

    folder = out or run / "lm-eval"
    files = write(run, folder)
    console.print(f"{len(files)} files in {folder}", highlight=False, markup=False, soft_wrap=True)
