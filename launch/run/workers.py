"""The driver's side of an engine: a thread that feeds one actor, writes its results, and replaces it when it dies.

A shard is in the store as soon as it is done, so that a death costs only the shards in flight. A worker holds no work
while its actor waits for GPUs: the others do it all, and a worker whose actor never gets any ends with the run.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from evaluator.engine.base import EngineStats, LoadReport
from evaluator.errors import EngineError, ResurfaceError, one_line
from evaluator.store.records import RecordStore
from launch.run.actors import CONTROL, EngineActor, start_actor
from launch.run.base_answers import BaseAnswers
from launch.run.board import Board
from launch.run.nodes import Place
from launch.run.work import Assignment, EngineSetup, Shard, ShardResult, Where

_log = logging.getLogger(__name__)
_LOAD_SECONDS = 1800  # an actor that has not loaded its checkpoint by then is taken for dead
_CONTROL_SECONDS = 60
_RESTART_SECONDS = 30.0  # that work is kept for an actor that is started again on GPUs that have just been freed
_TELL_SECONDS = 60.0  # without a place, after which the user is told
_FAILURES = (RayActorError, EngineError, RayTaskError, GetTimeoutError)


class Patience:
    """When a run gives up on its engines; for that, which of them have a process. Thread-safe."""

    def __init__(self, *, attempts: int, placement_seconds: float) -> None:
        """`attempts`: failures in a row of one engine; `placement_seconds`: for which no engine may have a process."""
        self.attempts = attempts
        self._seconds = placement_seconds
        self._engines: set[int] = set()
        self._lost = 0.0  # when one last lost its process
        self._lock = threading.Lock()

    def add(self, engine: int) -> None:
        with self._lock:
            self._engines.add(engine)

    def remove(self, engine: int) -> None:
        with self._lock:
            if engine in self._engines:
                self._engines.remove(engine)
                self._lost = time.monotonic()

    def check(self, gpus: int, since: float) -> None:
        """Raises ResurfaceError when no engine, of `gpus` GPUs each, has had a process for too long.

        `since`: the time.monotonic() at which the one that asks began to wait.
        """
        with self._lock:
            waited = time.monotonic() - max(since, self._lost)
            if self._engines or waited <= self._seconds:
                return
        needs = f"{gpus} free GPU{'s' if gpus > 1 else ''} on one node" if gpus else "a process"
        raise ResurfaceError(
            f"no engine has found {needs} for {waited:.0f} s (resources.placement_seconds): others hold them, or "
            "nodes are gone; finished work is kept, the same command resumes"
        )


class Reporter(Protocol):
    """Whom a worker reports to."""

    def loading(self, engine: int, checkpoint: str) -> None: ...
    def loaded(self, engine: int, checkpoint: str, swapped: bool, seconds: float) -> None: ...
    def began(self, engine: int, checkpoint: str, task: str, items: int) -> None: ...
    def advanced(self, engine: int, items: int) -> None: ...
    def ended(self, engine: int) -> None: ...
    def unplaced(self, engine: int, gpus: int) -> None: ...
    def died(self, engine: int, reason: str) -> None: ...
    def warned(self, message: str) -> None: ...


class EngineWorker(threading.Thread):
    """Serves assignments from the board until there are none. `failure` holds what stopped it, if anything did."""

    def __init__(
        self,
        number: int,
        setup: EngineSetup,
        *,
        board: Board,
        store: RecordStore,
        questions: Mapping[str, Any],
        reporter: Reporter,
        patience: Patience,
    ) -> None:
        """`questions`: task key -> object reference of its questions."""
        super().__init__(name=f"engine-{number}", daemon=True)
        self.number = number
        self.failure: BaseException | None = None
        self._setup = setup
        self._board = board
        self._store = store
        self._questions = questions
        self._reporter = reporter
        self._patience = patience
        self._where: Where | None = None  # None: the actor, if there is one, has no place yet
        self._actor: Any = None
        self._loaded: str | None = None
        self._architecture: str | None = None
        self._failures = 0
        self._loads = 0
        self.stats: dict[tuple[int, str], tuple[Where, EngineStats]] = {}  # by load and checkpoint
        self.reports: dict[int, LoadReport] = {}  # by load
        self._ahead: str | None = None  # the checkpoint that the actor last read ahead

    @property
    def place(self) -> Place:
        return self._setup.place

    def run(self) -> None:
        try:
            while (assignment := self._next()) is not None:
                self._serve(assignment)
        except BaseException as error:  # the driver's thread raises it
            self.failure = error
            self._board.stop()
        finally:
            self._kill()

    def _next(self) -> Assignment | None:
        """Work, as soon as there are a process for it and work; None when there will never be both."""
        while not self._board.over:
            try:
                if self._has_place():
                    return self._board.take(self.number, self._loaded, self._architecture)
            except _FAILURES as error:
                self._recover(error, "when its process started")
        return None

    def _has_place(self, seconds: float | None = None) -> bool:
        """Whether the actor has its node and GPUs. Waits for them until the run is over, or for so many seconds."""
        if self._where is not None:
            return True
        if self._actor is None:
            self._actor = start_actor(EngineActor, self._setup, concurrency_groups={CONTROL: 1})
        started, told = time.monotonic(), False
        place = self._actor.where.remote()
        while not self._board.over:
            found, _ = ray.wait([place], timeout=1.0)
            waited = time.monotonic() - started
            if found:
                self._where = ray.get(place)
                self._patience.add(self.number)
                return True
            if seconds is not None and waited > seconds:
                return False
            self._patience.check(self._setup.place.gpus, started)
            if not told and waited > _TELL_SECONDS:
                told = True
                self._reporter.unplaced(self.number, self._setup.place.gpus)
        return False

    def _serve(self, assignment: Assignment) -> None:
        try:
            if self._load(assignment):
                self._evaluate(assignment)
        except _FAILURES as error:
            self._recover(error, f"on checkpoint {assignment.checkpoint.name!r}")
        finally:
            self._board.end(self.number)  # what is unfinished is there for any engine again

    def _recover(self, error: Exception, doing: str) -> None:
        """Make room for a new engine, unless engines keep dying without finishing any shard between."""
        if self._board.stopped:
            return
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, ResurfaceError) and not isinstance(cause, EngineError):
            raise cause from None
        self._kill()
        self._failures += 1
        if self._failures >= self._patience.attempts:
            raise EngineError(
                f"engine {self.number} failed {self._failures} times in a row {doing}: {one_line(cause)}; "
                f"see {self._setup.log_path}"
            ) from error
        self._reporter.died(self.number, type(cause).__name__)

    def _load(self, assignment: Assignment) -> bool:
        """Have the actor hold the assignment's checkpoint; False: it needs a new one, and that has to wait for GPUs."""
        info = assignment.checkpoint
        if self._loaded == info.weights_digest:
            return True
        if self._architecture not in (None, info.architecture):
            self._kill()
            if not self._has_place(_RESTART_SECONDS):
                return False
        self._reporter.loading(self.number, info.name)
        report: LoadReport = ray.get(self._actor.load.remote(info.path), timeout=_LOAD_SECONDS)
        self._loaded, self._architecture = info.weights_digest, info.architecture
        self._loads += 1
        self._reporter.loaded(self.number, info.name, report.swapped, report.seconds)
        for note in report.notes:
            self._reporter.warned(f"{info.name}: {note}")
        self.reports[self._loads] = report
        return True

    def _evaluate(self, assignment: Assignment) -> None:
        def give_up(count: int) -> list[Shard]:
            # A late answer does no harm: the shards that the actor then skips are unfinished, and come again.
            with contextlib.suppress(RayError):
                given: list[Shard] = ray.get(self._actor.give_up.remote(count), timeout=_CONTROL_SECONDS)
                return given
            return []

        shards = self._board.begin(self.number, give_up)
        items = sum(len(shard.questions) for shard in shards)
        self._reporter.began(self.number, assignment.checkpoint.name, assignment.task, items)
        try:
            self._read_ahead()
            stream = self._actor.evaluate.options(num_returns="streaming").remote(
                assignment.job, shards, self._questions[assignment.job.task_key], self._base_answers(assignment)
            )
            for pending in stream:
                result: ShardResult = ray.get(pending)
                self._store.append(assignment.checkpoint.name, assignment.task, result.shard.name, result.table)
                self._failures = 0
                self._board.finished(self.number, result.shard)
                self._reporter.advanced(self.number, len(result.shard.questions))
                self._read_ahead()  # what comes next may only just have been pruned
            self._keep_stats(assignment.checkpoint.name)
        finally:
            self._reporter.ended(self.number)

    def _base_answers(self, assignment: Assignment) -> BaseAnswers | None:
        """What the base's records say, all of which are there: the board hands nothing out before."""
        base = assignment.job.base
        if base is None:
            return None
        return BaseAnswers(base, None if base.name is None else self._store.greedy_answers(base.name, assignment.task))

    def _keep_stats(self, checkpoint: str) -> None:
        stats: EngineStats | None = ray.get(self._actor.stats.remote(), timeout=_CONTROL_SECONDS)
        if stats is not None and self._where is not None:
            self.stats[self._loads, checkpoint] = self._where, stats

    def _read_ahead(self) -> None:
        """Have the actor bring the next checkpoint's files into the page cache, once."""
        assert self._loaded is not None
        upcoming = self._board.upcoming(self._loaded, self._architecture)
        if upcoming is not None and upcoming.weights_digest != self._ahead:
            self._ahead = upcoming.weights_digest
            self._actor.read_ahead.remote(upcoming.path)

    def _kill(self) -> None:
        """Ending the process is what frees an engine's memory."""
        if self._actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(self._actor)
        self._actor, self._where, self._loaded, self._architecture = None, None, None, None
        self._patience.remove(self.number)
