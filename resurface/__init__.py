"""Resurface in Python: open a run, judge it, compare two, and the registries.

import resurface

run = resurface.open_run("runs/mine")
resurface.gate("runs/mine", max_drop=1)["verdict"]
resurface.compare("runs/mine", "runs/other")
resurface.TABLES.names
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator import grade, open_run

if TYPE_CHECKING:
    import pandas as pd

    from evaluator.engine.config import ENGINES
    from evaluator.metrics import TABLES
    from evaluator.probes import PROBES
    from evaluator.tasks import TASKS
    from pruning.methods import METHODS

# Late: a process that only opens a run needs no engine. `METHODS` are of pruning.
_REGISTRIES = {
    "ENGINES": "evaluator.engine",
    "METHODS": "pruning.methods",
    "PROBES": "evaluator.probes",
    "TABLES": "evaluator.metrics",
    "TASKS": "evaluator.tasks",
}

__all__ = [
    "ENGINES",
    "METHODS",
    "PROBES",
    "TABLES",
    "TASKS",
    "compare",
    "gate",
    "grade",
    "open_run",
]


def gate(
    run: str | Path, policy: str | Path | None = None, **tolerances: object
) -> dict[str, Any]:
    """The content of gate.json for a run directory, under a policy's file and these
    tolerances (such as `max_drop=1`), else the run's last policy."""
    return open_run(run).gate(policy, **tolerances)


def compare(run: str | Path, other: str | Path) -> "pd.DataFrame":
    """What moved from one run to another, as `resurface compare --csv` writes it."""
    return open_run(run).compare(Path(other))


def __getattr__(name: str) -> Any:
    if name not in _REGISTRIES:
        raise AttributeError(f"module 'resurface' has no attribute {name!r}")
    return getattr(importlib.import_module(_REGISTRIES[name]), name)
