"""Whether what an earlier call has made can still be used."""

from __future__ import annotations

from collections.abc import Iterable

from evaluator.checkpoints.info import read_config
from evaluator.checkpoints.tensors import read_tensors
from evaluator.core.errors import InputError
from launch.sweep.jobs import CheckpointJob
from pruning.output.manifest import read_manifest
from quantising.manifest import read_manifest as read_quantise_manifest


def damaged(jobs: Iterable[CheckpointJob]) -> dict[str, str]:
    """By name, why made checkpoints cannot be used: manifest, configuration or headers are broken, or files are gone.

    Weights are not read: their digest is known when they are evaluated.
    """
    found = {}
    for job in jobs:
        try:
            _check(job)
        except InputError as error:
            found[job.name] = f"{error}; remove {job.path}, and the same command makes it again"
    return found


def _check(job: CheckpointJob) -> None:
    """Raises InputError for a checkpoint that is there and not whole."""
    manifest = read_quantise_manifest(job.path) if job.prune is None else read_manifest(job.path)
    if manifest is None:  # it is written last
        return
    for name in manifest.files:
        if not (job.path / name).is_file():
            raise InputError(f"{job.path / name}: the manifest lists this file, and it is gone")
    read_config(job.path)
    read_tensors(job.path)
