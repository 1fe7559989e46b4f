"""`resurface doctor`: what this machine is, and whether every fast path agrees with its slow one on it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from evaluator.core.errors import InputError, unknown
from evaluator.engine.config import ENGINES, EngineConfig
from launch.commands.options import DTYPES
from launch.commands.terminal import console, errors
from launch.run.place import nearest_existing
from launch.sweep.models import BUNDLED_MODEL

if TYPE_CHECKING:
    from launch.doctor.examination import Examination


def doctor(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="CARD.md",
            help="write a result card there, after each step what is known, and the engines' logs into CARD.logs/",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON in place of the table")] = False,
    dtype: Annotated[
        str, typer.Option(help=f"that engines compute in: {', '.join(DTYPES)}; auto: as in a run")
    ] = "auto",
) -> None:
    """Check every fast path against its slow one on this machine, with the bundled model; exit code 1 if one fails.

    Takes one to three minutes on two cores, and needs no network.
    """
    if dtype not in DTYPES:
        raise unknown("--dtype", dtype, DTYPES)
    ENGINES["vllm"].check_here(EngineConfig())
    logs = None
    if out is not None:
        _need_file_place(out)
        logs = out.absolute().with_suffix(".logs")
        _make_folder(logs)
    from evaluator.store.files import write_atomically
    from launch.doctor import card

    def keep(examination: Examination) -> None:
        if out is not None:  # it may be cut off: what is known by then is worth a card
            write_atomically(out, card.markdown(examination).encode())

    examination = _examined(dtype, logs, keep)
    if as_json:
        print(json.dumps(card.document(examination)))
    else:
        console.print(card.table(examination))
        console.print(card.verdict(examination), highlight=False)
    if out is not None:
        keep(examination)
        errors.print(f"card: {escape(str(out))}, logs: {escape(str(logs))}", highlight=False)
    if examination.failed:
        raise typer.Exit(1)


def _examined(dtype: str, logs: Path | None, so_far: Callable[[Examination], None]) -> Examination:
    from launch.doctor.evidence import Statement
    from launch.doctor.examination import briefed, examine
    from launch.doctor.machine import this_machine
    from launch.doctor.witnesses import Witness

    machine = this_machine()
    for name, value in machine.lines():
        errors.print(f"[bold]{name:>12}[/bold]  {escape(value)}", highlight=False)

    def ended(witness: Witness, said: Statement | str) -> None:
        outcome = f"[red]{escape(said)}[/red]" if isinstance(said, str) else f"{said.seconds:.1f} s"
        errors.print(f"[dim]{witness.what}:[/dim] {outcome}", highlight=False)

    with (
        tempfile.TemporaryDirectory(prefix="resurface-doctor-", ignore_cleanup_errors=True) as scratch,
        errors.status("") as status,
    ):
        return examine(
            machine,
            briefed(BUNDLED_MODEL, Path(scratch), dtype, logs),
            starting=lambda witness: status.update(witness.what),
            ended=ended,
            so_far=so_far,
        )


def _need_file_place(out: Path) -> None:
    """Raises InputError for what can be no file."""
    if out.is_dir():
        raise InputError(f"{out}: --out: is a directory, not a file")
    if not nearest_existing(out.parent).is_dir():
        raise InputError(f"{out}: --out: {nearest_existing(out.parent)} is a file, not a directory")


def _make_folder(folder: Path) -> None:
    """Raises InputError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: --out: the logs need this folder ({error.strerror})") from error
