"""`resurface bench` runs benchmarks of the checkout, each in its own process. The wheel does not contain them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from evaluator.core.config import Registry
from evaluator.core.errors import InputError, ResurfaceError, unknown

CHECKOUT = Path(__file__).resolve().parents[2]  # in a wheel: the folder of installed packages
ALL = "all"  # runs every benchmark that needs no options, one after another
_TOLD = (2, 4)  # exit codes after which the benchmark has said everything: bad input, a card that does not hold


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark by name. `python -m benchmarks.MODULE` runs it; this program never imports it."""

    name: str
    module: str
    in_all: bool = True  # False: it needs options of its own


BENCHMARKS = Registry(
    "benchmark",
    (
        Benchmark("score", "serving.score"),
        Benchmark("beam", "serving.beam"),
        Benchmark("fidelity", "serving.fidelity"),
        Benchmark("swap", "serving.swap"),
        Benchmark("pass", "serving.checkpoint_pass"),
        Benchmark("host", "host"),
        Benchmark("record", "record.run", in_all=False),
        Benchmark("gate", "gate.run"),
        Benchmark("prune", "pruning.prune"),
    ),
)


def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help=f"{', '.join(BENCHMARKS.names)}, or {ALL}; docs/benchmarks.md describes them"
        ),
    ],
) -> None:
    """Run a benchmark. It gets all further options. Needs a checkout of Resurface."""
    # A benchmark that refuses its arguments prints one line; the command then exits with code 2.
    names = (*BENCHMARKS.names, ALL)
    if name not in names:
        raise unknown(BENCHMARKS.kind, name, names)
    if not (CHECKOUT / "benchmarks").is_dir():
        raise InputError("no benchmarks are installed; run this in a checkout of Resurface (`make install`)")
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for each in [each for each in BENCHMARKS if each.in_all] if name == ALL else [BENCHMARKS[name]]:
        command = [sys.executable, "-P", "-m", f"benchmarks.{each.module}", *context.args]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
        if done.returncode in _TOLD:
            raise typer.Exit(done.returncode)
        if done.returncode:
            raise ResurfaceError(f"benchmark {each.name!r} failed with exit code {done.returncode}")
