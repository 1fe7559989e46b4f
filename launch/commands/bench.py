"""`resurface bench`: runs benchmarks, each in a process of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Annotated

import typer

from benchmarks.processes import environment, module_command
from benchmarks.registry import BENCHMARKS
from evaluator.core.errors import ResurfaceError, unknown
from launch.commands.options import described

ALL = "all"  # the name for every benchmark, one after another
NAMES = (*BENCHMARKS.names, ALL)


def bench(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"{described(BENCHMARKS)}\n\n{ALL}: one benchmark after another")
    ],
) -> None:
    """Run a benchmark of the README; further options go to it."""
    run_benchmarks(name, context.args)


def run_benchmarks(name: str, arguments: Sequence[str]) -> None:
    """Run benchmark `name`, or every one for `all`, with `arguments`.

    Raises InputError for an unknown name, ResurfaceError when a benchmark fails. Arguments that one refuses end the
    command with exit code 2: the benchmark has said in one line what is wrong.
    """
    if name not in NAMES:
        raise unknown(BENCHMARKS.kind, name, NAMES)
    for each in BENCHMARKS if name == ALL else (BENCHMARKS[name],):
        done = subprocess.run(module_command(each.module, *arguments), env=environment(), check=False)
        if done.returncode == 2:
            raise typer.Exit(2)
        if done.returncode:
            raise ResurfaceError(f"benchmark {each.name!r} failed with exit code {done.returncode}")
