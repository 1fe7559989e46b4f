"""The tasks of a run that make checkpoints, by pruning or quantising: as many at a time as there are GPUs, or CPUs."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evaluator.errors import InputError, ResurfaceError, one_line
from launch.run.actors import make_checkpoint
from launch.run.nodes import FreeGpus, prune_options
from launch.run.provenance import provenance
from launch.sweep.jobs import CheckpointJob


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A job that failed for good."""

    job: CheckpointJob
    reason: str
    attempts: int
    mendable: bool  # the input is at fault


class PruneTasks:
    """Starts prune jobs and hands them back as they are done. One that fails is tried again, elsewhere if possible."""

    def __init__(
        self,
        jobs: Sequence[CheckpointJob],
        *,
        log_path: Path,
        held_out: Mapping[str, str],
        free: FreeGpus | None,
        attempts: int,
    ) -> None:
        """`free`: the GPUs that jobs and engines are given; None: jobs run on CPUs, and Ray has them wait for one."""
        self._attempts = attempts
        self._failures: Counter[str] = Counter()  # by job
        self._failed_on: dict[str, str] = {}  # the node on which a job failed last
        self._given_up: list[GivenUp] = []
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

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def short(self) -> bool:
        """Whether a job waits for a GPU, when those that are free have been given out."""
        return self._free is not None and self._next() is not None

    def start(self) -> None:
        """Start what there are GPUs for."""
        while (job := self._next()) is not None:
            node_id = None if self._free is None else self._free.take_one(self._failed_on.get(job.name))
            if node_id is None and self._free is not None:
                return
            self._waiting.remove(job)
            config = job.prune or job.quantise
            assert config is not None
            task = self._task
            if node_id is not None:
                task = task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=True))
            elif self._failures[job.name]:
                task = task.options(scheduling_strategy="SPREAD")
            arguments = (config.absolute(), job.path.absolute(), self._held_out, provenance(), self._log_path)
            self._running[task.remote(*arguments)] = job, node_id

    def _next(self) -> CheckpointJob | None:
        """The first waiting job whose source is there."""
        to_come = {each.name for each in self._waiting} | {each.name for each, _ in self._running.values()}
        return next((job for job in self._waiting if job.after not in to_come), None)

    def done(self, seconds: float) -> list[CheckpointJob]:
        """The jobs that ended well since the last call; waits so long for one."""
        if not self._running:  # they wait for GPUs, and Ray does not wait for nothing
            time.sleep(seconds)
        done, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        ended = []
        for pending in done:
            job, node_id = self._running.pop(pending)
            try:
                ray.get(pending)
            except RayError as error:
                self._failed(job, node_id, error)
            else:
                ended.append(job)
            if self._free is not None and node_id is not None:
                self._free.give_back(node_id)
        return ended

    def given_up(self) -> list[GivenUp]:
        """The jobs that failed for good since the last call."""
        found, self._given_up = self._given_up, []
        return found

    def _failed(self, job: CheckpointJob, node_id: str | None, error: RayError) -> None:
        cause = error.cause if isinstance(error, RayTaskError) else error
        mendable = isinstance(cause, InputError)
        self._failures[job.name] += 1
        tries = self._failures[job.name]
        if mendable or tries >= self._attempts:
            self._give_up(GivenUp(job, _reason(cause), tries, mendable))
            return
        if node_id is not None:
            self._failed_on[job.name] = node_id
        self._waiting.append(job)

    def _give_up(self, lost: GivenUp) -> None:
        """Give a job up, and what would have been made from its checkpoint."""
        self._given_up.append(lost)
        for job in [each for each in self._waiting if each.after == lost.job.name]:
            self._waiting.remove(job)
            self._give_up(GivenUp(job, f"{lost.job.name!r}, of which it is made, could not be made", 0, lost.mendable))


def _reason(cause: BaseException) -> str:
    if isinstance(cause, OutOfMemoryError):
        return "its process was ended by Ray, as its node was running out of memory"
    if isinstance(cause, RayError):
        return "its process ended without a word: it was killed, or out of memory"
    return one_line(cause if isinstance(cause, ResurfaceError) else f"{type(cause).__name__}: {cause}", 300)
