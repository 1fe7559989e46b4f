"""Where bases keep their distributions in a run directory: `RUN/references/<base>/<task>/`, a file for each passage.

Engines write them, whole or not at all, and they are there once the base's records are. They are as large as the
vocabulary times the positions: a finished run removes them, and an unfinished one needs them to resume.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from evaluator.probes.base import References
from evaluator.store.files import need_unfenced
from launch.run.base_answers import BaseSource
from launch.sweep.jobs import CheckpointJob

Jobs = Sequence[CheckpointJob]
FOLDER = "references"


def references_of(run_dir: Path, job: CheckpointJob, task: str, base: BaseSource | None, jobs: Jobs) -> References:
    """Those of a checkpoint on one task; `base` as in EvalJob, `jobs` are all of the run."""

    def folder(name: str) -> str:
        return str((run_dir / FOLDER / name / task).absolute())

    if base is None:
        return References(compare=folder(job.name), keep=folder(job.name))
    keep = folder(job.name) if any(other.base == job.name for other in jobs) else ""
    return References(compare=folder(base.name) if base.name else "", keep=keep, missing=base.missing)


def drop_references(run_dir: Path) -> None:
    """Remove all of them; a file that cannot be removed stays.

    Raises ResurfaceError where another driver has taken the directory over.
    """
    need_unfenced(run_dir / FOLDER)
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)
