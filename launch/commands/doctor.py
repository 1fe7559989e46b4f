"""`resurface doctor`: describes this machine, and compares each fast path with its
slow reference."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from evaluator.core.errors import InputError
from evaluator.engine.config import ENGINES, EngineConfig
from launch.commands.options import DTYPES, dtype_names, each_known
from launch.commands.terminal import AsJson, console, errors, print_json
from launch.run.directory.lock import nearest_existing
from launch.sweep.models import BUNDLED_MODEL

if TYPE_CHECKING:
    from launch.doctor.report import Report


def doctor(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="CARD.md",
            help=(
                "write a result card, renewed after each run, and the engines' logs"
                " into CARD.logs/"
            ),
        ),
    ] = None,
    as_json: AsJson = False,
    dtype: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(DTYPES)}; auto: as in eval", autocompletion=dtype_names
        ),
    ] = "auto",
) -> None:
    """Compare each fast path with its slow reference on this machine. Exit code 1 if
    a check fails.

    Takes one to three minutes on a CPU with two cores, and needs no network."""
    each_known("--dtype", [dtype], DTYPES)
    engine = EngineConfig()
    ENGINES[engine.kind].check_here(engine)
    logs = None
    if out is not None:
        # as the card is called at first
        nearest = nearest_existing(out.with_name(f".{out.name}.writing"))
        if not nearest.is_dir():
            raise InputError(f"{out}: --out: {nearest} is a file, not a directory")
        if out.is_dir():
            raise InputError(f"{out}: --out: is a directory, not a file")
        logs = out.absolute().with_suffix(".logs")
        try:
            logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"{logs}: --out: the logs need this folder ({error.strerror})"
            ) from error
    from evaluator.core.files import write_atomically
    from launch.doctor import report as doctor_report

    for report in _reports(dtype, logs):
        if out is not None:  # after every run, because a later run may be cut off
            write_atomically(out, doctor_report.markdown(report).encode(), named=True)
    if as_json:
        print_json(doctor_report.document(report))
    else:
        console.print(doctor_report.table(report))
        console.print(doctor_report.verdict(report), highlight=False)
    if out is not None:
        errors.print(
            f"card: {escape(str(out))}, logs: {escape(str(logs))}", highlight=False
        )
    if report.failed:
        raise typer.Exit(1)


def _reports(dtype: str, logs: Path | None) -> Iterator[Report]:
    """The report after each run. The last one is whole."""
    from launch.doctor.machine import this_machine
    from launch.doctor.report import run_checks
    from launch.doctor.runs import Inputs
    from launch.run.work.cluster import remove_leftovers

    machine = this_machine()
    for name, value in machine.facts:
        errors.print(f"[bold]{name:>12}[/bold]  {escape(value)}", highlight=False)
    for line in remove_leftovers():
        errors.print(f"[bold]{'Ray':>12}[/bold]  {escape(line)}", highlight=False)
    with (
        tempfile.TemporaryDirectory(
            prefix="resurface-doctor-", ignore_cleanup_errors=True
        ) as folder,
        errors.status("") as status,
    ):
        scratch = Path(folder)
        inputs = Inputs(
            dense=BUNDLED_MODEL, scratch=scratch, logs=logs or scratch, dtype=dtype
        )
        for run, result, report in run_checks(machine, inputs):
            status.update(run.what)
            if result is not None:
                outcome = (
                    f"[red]{escape(result)}[/red]"
                    if isinstance(result, str)
                    else f"{result.seconds:.1f} s"
                )
                errors.print(f"[dim]{run.what}:[/dim] {outcome}", highlight=False)
                yield report
