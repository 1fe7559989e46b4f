"""The tasks of a run that make checkpoints, by pruning or quantising: as many at a time as there are GPUs, or CPUs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evaluator.errors import InputError, ResurfaceError, one_line
from launch.run.actors import make_checkpoint
from launch.run.nodes import FreeGpus, prune_options
from launch.run.provenance import provenance
from launch.sweep.jobs import CheckpointJob


class PruneTasks:
    """Starts prune jobs and hands them back as they are done."""

    def __init__(
        self, jobs: Sequence[CheckpointJob], *, log_path: Path, held_out: Mapping[str, str], free: FreeGpus | None
    ) -> None:
        """`free`: the GPUs that jobs and engines are given; None: jobs run on CPUs, and Ray has them wait for one."""
        self._waiting = deque(jobs)
        self._running: dict[Any, tuple[CheckpointJob, str | None]] = {}  # with the node whose GPU it was given
        self._free = free
        self._task = ray.remote(**prune_options(gpu=free is not None))(make_checkpoint)
        self._log_path = log_path.absolute()
        self._held_out = ray.put(dict(held_out))

    @property
    def left(self) -> int:
        """Jobs that are not done."""
        return len(self._waiting) + len(self._running)

    def start(self) -> None:
        """Start what there are GPUs for."""
        while (job := self._next()) is not None:
            node_id = None if self._free is None else self._free.take_one()
            if node_id is None and self._free is not None:
                return
            self._waiting.remove(job)
            config = job.prune or job.quantise
            assert config is not None
            task = self._task
            if node_id is not None:
                task = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True))
            arguments = (config.absolute(), job.path.absolute(), self._held_out, provenance(), self._log_path)
            self._running[task.remote(*arguments)] = job, node_id

    def _next(self) -> CheckpointJob | None:
        """The first waiting job whose source is there."""
        to_come = {each.name for each in self._waiting} | {each.name for each, _ in self._running.values()}
        return next((job for job in self._waiting if job.after not in to_come), None)

    def done(self, seconds: float) -> list[CheckpointJob]:
        """The jobs that ended well since the last call; waits so long for one.

        Raises InputError or ResurfaceError for one that failed.
        """
        done, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        ended = []
        for pending in done:
            job, node_id = self._running.pop(pending)
            try:
                ray.get(pending)
            except RayError as error:
                raise _failure(job, error) from error
            if self._free is not None and node_id is not None:
                self._free.give_back(node_id)
            ended.append(job)
        return ended


def _failure(job: CheckpointJob, error: RayError) -> ResurfaceError:
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, InputError):
        return InputError(f"{job.name}: {cause}")
    reason = str(cause) if isinstance(cause, ResurfaceError) else f"{type(cause).__name__}: {cause}"
    doing = "pruning" if job.quantise is None else "quantising"
    return ResurfaceError(f"{doing} {job.name!r} failed: {one_line(reason, 300)}")
