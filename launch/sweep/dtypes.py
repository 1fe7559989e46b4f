"""A checkpoint and its base are computed in one dtype: a difference of dtype would be taken for damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import InputError
from evaluator.engine.config import ENGINES, EngineConfig
from launch.sweep.jobs import CheckpointJob


def check_dtypes(engine: EngineConfig, jobs: Sequence[CheckpointJob], dense: Mapping[str, CheckpointInfo]) -> None:
    """Raises InputError for the first checkpoint whose own dtype is not its base's, where engines compute in that.

    `dense`: what exists before the run, by name. What a run makes itself has the dtype of what it is made from.
    """
    if engine.dtype != "auto" or engine.mixed_dtypes or not ENGINES[engine.kind].own_dtypes():
        return
    for job in jobs:
        own, base = dense.get(job.name), dense.get(job.base or "")
        if own is not None and base is not None and own.dtype != base.dtype:
            raise InputError(
                f"checkpoint {own.path}: dtype auto would compute it in {own.dtype}, and its base {base.name} in "
                f"{base.dtype}: set --dtype bfloat16 (engine.dtype in a sweep file) for both, or --mixed-dtypes "
                "(engine.mixed_dtypes) to have them compared all the same, and every table say so"
            )
