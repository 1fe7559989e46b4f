"""`resurface bench` runs benchmarks of the checkout, each in its own process. The
wheel does not contain them."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.errors import InputError, ResurfaceError, unknown
from evaluator.core.isolated import environment
from launch.commands.options import completing

# in a wheel: the folder of installed packages
CHECKOUT = Path(__file__).resolve().parents[2]
ALL = "all"  # runs every benchmark that needs no options, one after another
_TOLD = 2  # exit code after which the benchmark has said everything: bad input

# `python -m benchmarks.MODULE ...` runs each; this program never imports them.
BENCHMARKS = {
    "score": ("serving", "score"),
    "beam": ("serving", "beam"),
    "swap": ("serving.swap",),
    "pass": ("serving", "pass"),
    "host": ("host",),
    "report": ("report",),
    "prune": ("pruning.prune",),
}


def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            autocompletion=completing((*BENCHMARKS, ALL)),
            help=(
                f"{', '.join(BENCHMARKS)}, or {ALL}; docs/benchmarks.md describes them"
            ),
        ),
    ],
) -> None:
    """Run a benchmark. It gets all further options. Needs a checkout of Resurface."""
    # A benchmark that refuses its arguments prints one line; the command then exits
    # with code 2.
    names = (*BENCHMARKS, ALL)
    if name not in names:
        raise unknown("benchmark", name, names)
    if not (CHECKOUT / "benchmarks").is_dir():
        raise InputError(
            "no benchmarks are installed; run this in a checkout of Resurface (`make"
            " install`)"
        )
    for each in BENCHMARKS if name == ALL else (name,):
        module, *arguments = BENCHMARKS[each]
        command = [sys.executable, "-P", "-m", f"benchmarks.{module}"]
        command += [*arguments, *context.args]
        done = subprocess.run(command, env=environment(), check=False)
        if done.returncode == _TOLD:
            raise typer.Exit(_TOLD)
        if done.returncode:
            raise ResurfaceError(
                f"benchmark {each!r} failed with exit code {done.returncode}"
            )
