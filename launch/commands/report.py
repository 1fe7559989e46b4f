"""`resurface report`: tables and report of a run, from its records alone."""

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
    """Raises InputError for what is no run directory."""
    if not (run / "records").is_dir():
        raise InputError(f"{run}: not a run directory: it has no records/")
