"""The tasks of a run that prune or quantise checkpoints: as many at once as there are
GPUs, or CPUs but one.

A failed task is tried again. A task without progress is ended, and then counts as
failed.
"""

import json
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evaluator.checkpoints.tensors import PROVEN
from evaluator.core.errors import InputError
from evaluator.core.liveness import HangWatch, Hung
from evaluator.store.run_json import Failure
from launch.provenance import provenance
from launch.run.attempts import count, given_up
from launch.run.decide.assignments import Where
from launch.run.decide.nodes import FreeGpus, Nodes, compress_options
from launch.run.events import Attempt, Made, Making, Retried
from launch.run.state import Bus
from launch.run.work.actors import end_process, make_checkpoint
from launch.run.work.cluster import lives
from launch.run.work.logs import last_words, size
from launch.sweep.jobs import CheckpointJob, Jobs
from launch.sweep.preflight import Prepared

_POLL_SECONDS = 2.0  # between two checks of the tasks' progress


class TaskWatch:
    """Checks by a file whether a task makes progress or hangs: its process writes
    the file (`showing_life`)."""

    def __init__(self, path: Path, load_seconds: float, stall_seconds: float) -> None:
        """`load_seconds`: from the first sign of life until the first step: the task
        reads the configuration.

        `stall_seconds`: between two steps; more after longer pauses that ended well."""
        self.path = path
        # None: it waits for its place, or has shown no sign of life yet
        self.where: Where | None = None
        self.hang = HangWatch(load_seconds)
        self.beats = 0
        # in place of the first, from the first step on
        self._steps = HangWatch(stall_seconds)
        self.clear()

    def clear(self) -> None:
        """Remove the file of a killed process."""
        with suppress(OSError):
            self.path.unlink()

    def check(self, now: float) -> None:
        """Read the current state. Raises Hung."""
        # it is missing, or just being written
        with suppress(OSError, ValueError, TypeError, KeyError):
            read = json.loads(self.path.read_bytes())
            where, beats = Where(**read["where"]), int(read["beats"])
            if self.where is None:
                self.where, self.beats = where, beats
                self.hang.begin(now)
            elif beats != self.beats:
                self.hang, self.beats = self._steps, beats
                self.hang.moved(now)
        self.hang.check(now)


@dataclass(slots=True)
class _Task:
    job: CheckpointJob
    node_id: str | None  # that of its GPU, or of another try; None: any
    log: Path
    log_start: int  # the byte of the log at which its output begins
    watch: TaskWatch
    hung: Hung | None = None  # why its process was ended
    began: float = field(default_factory=time.monotonic)


class CompressTasks:
    """Starts prune jobs and returns finished ones. A failed job is tried again, on
    another node if possible."""

    def __init__(
        self,
        jobs: Jobs,
        prepared: Prepared,
        log_dir: Path,
        *,
        free: FreeGpus | None,
        bus: Bus,
    ) -> None:
        """`free`: the GPUs for jobs and engines; None: CPUs."""
        self._resources = prepared.config.resources
        self._bus, self._report = bus, bus.report
        self._total = len(jobs)
        # by failed job: the node on which it failed last, if it had a GPU
        self._failed_on: dict[str, str | None] = {}
        self._given_up: list[Failure] = []
        self._waiting = deque(jobs)
        self.running: dict[Any, _Task] = {}
        self._free = free
        options = compress_options(gpu=free is not None)
        self._task = ray.remote(**options)(make_checkpoint)
        self._log_dir = log_dir.absolute()
        self._held_out = ray.put(dict(prepared.held_out))
        self._polled = time.monotonic()

    @property
    def unfinished(self) -> int:
        return len(self._waiting) + len(self.running)

    @property
    def short(self) -> bool:
        """Whether a job still waits for a GPU after the free ones were given out."""
        return self._free is not None and self._next() is not None

    def start(self, nodes: Nodes) -> None:
        """Start as many jobs as there are free GPUs, or CPUs but one: with it, an
        engine starts meanwhile."""
        cpus = sum(node.cpus for node in nodes)
        while (job := self._next()) is not None:
            node_id = None
            if self._free is not None:
                node_id = self._free.take_one(self._failed_on.get(job.name))
                if node_id is None:
                    return
            elif len(self.running) >= max(1, cpus - 1):
                return
            elif tries := count(self._bus.state.attempts, job.name, "job"):
                # nobody knows where a process ended that never showed life
                node_id = nodes[tries % len(nodes)].node_id
            self._waiting.remove(job)
            self._start(job, node_id)

    def _start(self, job: CheckpointJob, node_id: str | None) -> None:
        config = job.prune or job.quantise
        assert config is not None
        task = self._task
        if node_id is not None:
            place = NodeAffinitySchedulingStrategy(node_id, soft=True)
            task = task.options(scheduling_strategy=place)
        log = self._log_dir / f"prune-{job.name}.log"
        watch = TaskWatch(
            log.with_suffix(".pulse"),
            self._resources.load_seconds,
            self._resources.stall_seconds,
        )
        self._report(Making(checkpoint=job.name))
        log_start = size(log)
        pending = task.remote(
            config.absolute(),
            job.path.absolute(),
            PROVEN.get(config.source.absolute()),
            self._held_out,
            provenance(),
            log,
            watch.path,
        )
        self.running[pending] = _Task(job, node_id, log, log_start, watch)

    def _next(self) -> CheckpointJob | None:
        """The first waiting job whose source exists."""
        to_come = {job.name for job in self._waiting}
        to_come |= {task.job.name for task in self.running.values()}
        return next((job for job in self._waiting if job.after not in to_come), None)

    def ended(self) -> tuple[list[CheckpointJob], list[Failure]]:
        """The jobs that succeeded since the last call, and those that were given up."""
        running = [*self.running]
        done, _ = ray.wait(running, num_returns=max(1, len(running)), timeout=0)
        made = []
        for pending in done:
            task = self.running.pop(pending)
            error: Exception | None = None
            try:
                if (proof := ray.get(pending)) is not None:
                    PROVEN[task.job.path.absolute()] = proof
                made.append(task.job)
                self._made(task.job.name, round(time.monotonic() - task.began, 3))
            except RayError as failure:
                error = failure
            self._close(task, error)
        now = time.monotonic()
        if now - self._polled > _POLL_SECONDS:
            self._polled = now
            for pending, task in list(self.running.items()):
                self._poll(pending, task, now)
        given_up, self._given_up = self._given_up, []
        return made, given_up

    def _poll(self, pending: Any, task: _Task, now: float) -> None:
        """End the process of a hung task. Ray then reports the task's end."""
        try:
            task.watch.check(now)
        except Hung as error:
            # for example, a process that waits for a broken disk cannot be ended
            if task.hung is not None:
                del self.running[pending]
                self._close(task, error)
                return
            task.hung = error
            # because ending the process may take a while too
            task.watch.hang.begin(now)
            with suppress(RayError):
                ray.cancel(pending, force=True)
            if task.watch.where is not None:
                # Ray requests a process to end itself; a hung process may never react
                end_process(task.watch.where)

    def _close(self, task: _Task, error: Exception | None) -> None:
        """Clean up after a task. A failed one (`error`) is tried again, or given up."""
        task.watch.clear()
        if self._free is not None and task.node_id is not None:
            self._free.give_back(task.node_id)
        if error is None:
            return
        job, error = task.job, task.hung or error
        cause = error.cause if isinstance(error, RayTaskError) else error
        failure = Failure(
            checkpoint=job.name,
            stage="prune",
            reason=last_words(error, task.log, task.log_start),
            mendable=isinstance(cause, InputError),
        )
        where = task.watch.where
        lost = where is not None and not lives(where.node_id)
        self._report(Attempt(checkpoint=job.name, outcome="node" if lost else "job"))
        log, attempts = self._bus.state.attempts, self._resources.attempts
        final = given_up(log, failure, attempts, lost=lost)
        if final is not None:
            self._give_up(final)
            return
        text = f"{job.name} could not be made ({failure.reason}); trying it again"
        self._report(Retried(checkpoint=job.name, text=text))
        self._failed_on[job.name] = task.node_id
        self._waiting.append(job)

    def _made(self, checkpoint: str = "", seconds: float = 0.0) -> None:
        done = self._total - self.unfinished
        self._report(
            Made(checkpoint=checkpoint, items=done, total=self._total, seconds=seconds)
        )

    def _give_up(self, failure: Failure) -> None:
        """Give up a job, and the jobs that need its checkpoint."""
        self._given_up.append(failure)
        self._made()
        source = failure.checkpoint
        reason = f"{source!r}, its source, could not be made"
        for job in [each for each in self._waiting if each.after == source]:
            self._waiting.remove(job)
            self._give_up(
                replace(failure, checkpoint=job.name, reason=reason, attempts=0)
            )
