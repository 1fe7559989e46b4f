"""`resurface bench`: runs the benchmark scripts of the source tree, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluator.errors import InputError, ResurfaceError, unknown

_SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("score", "beam", "swap", "pass", "driver", "prune")


def run_benchmarks(name: str, arguments: Sequence[str]) -> None:
    """Run benchmark `name`, or every one for `all`; `arguments` go to the script.

    Raises InputError for an unknown name or where the scripts are not installed, ResurfaceError when one fails.
    """
    if name not in (*NAMES, "all"):
        raise unknown("benchmark", name, (*NAMES, "all"))
    for each in NAMES if name == "all" else (name,):
        script = _SCRIPTS / f"{each}.py"
        if not script.is_file():
            raise InputError(f"{script}: not found: the benchmarks come with the source tree, not with the package")
        done = subprocess.run([sys.executable, str(script), *arguments], cwd=_SCRIPTS.parent, check=False)
        if done.returncode == 2:
            raise InputError(f"benchmark {each!r} refused its arguments")
        if done.returncode:
            raise ResurfaceError(f"benchmark {each!r} failed with exit code {done.returncode}")
