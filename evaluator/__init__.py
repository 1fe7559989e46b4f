"""Checkpoint + items -> records -> numbers: the evaluator of compressed language models.

run = open_run("runs/grid")
run.table("fates")"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.report.opened import OpenRun


def open_run(path: str | Path) -> "OpenRun":
    """A run directory, running or finished, for Python and notebooks. Raises InputError if there is none."""
    from evaluator.report.opened import OpenRun  # late: a process that only imports a part needs no pandas

    return OpenRun(Path(path))
