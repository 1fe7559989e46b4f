"""The driver's side of an engine: a thread that feeds one actor, writes its results, and replaces it when it dies.

A shard is in the store as soon as it is done, so that a death costs only the shards in flight.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from evaluator.engine.base import EngineStats, LoadReport
from evaluator.errors import EngineError, ResurfaceError, one_line
from evaluator.store.records import RecordStore
from launch.run.actors import CONTROL, EngineActor
from launch.run.base_answers import BaseAnswers
from launch.run.board import Board
from launch.run.work import Assignment, EngineSetup, Shard, ShardResult

_log = logging.getLogger(__name__)
_LOAD_SECONDS = 1800  # an actor that has not loaded its checkpoint by then is taken for dead
_CONTROL_SECONDS = 60


class Reporter(Protocol):
    """Whom a worker reports to."""

    def loading(self, engine: int, checkpoint: str) -> None: ...
    def loaded(self, engine: int, checkpoint: str, swapped: bool, seconds: float) -> None: ...
    def began(self, engine: int, checkpoint: str, task: str, items: int) -> None: ...
    def advanced(self, engine: int, items: int) -> None: ...
    def ended(self, engine: int) -> None: ...
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
        attempts: int,
    ) -> None:
        """`questions`: task key -> object reference of its questions; `attempts`: failures in a row that end a run."""
        super().__init__(name=f"engine-{number}", daemon=True)
        self.number = number
        self.failure: BaseException | None = None
        self._setup = setup
        self._board = board
        self._store = store
        self._questions = questions
        self._reporter = reporter
        self._attempts = attempts
        self._actor: Any = None
        self._loaded: str | None = None
        self._architecture: str | None = None
        self._failures = 0
        self._loads = 0
        self.stats: dict[tuple[int, str], EngineStats] = {}  # by load and checkpoint
        self.reports: dict[int, LoadReport] = {}  # by load
        self._ahead: str | None = None  # the checkpoint that the actor last read ahead

    def run(self) -> None:
        try:
            while (assignment := self._board.take(self.number, self._loaded, self._architecture)) is not None:
                self._serve(assignment)
        except BaseException as error:  # the driver's thread raises it
            self.failure = error
            self._board.stop()
        finally:
            self._kill()

    def _serve(self, assignment: Assignment) -> None:
        try:
            self._load(assignment)
            self._evaluate(assignment)
        except (RayActorError, EngineError, RayTaskError, GetTimeoutError) as error:
            self._recover(error, assignment)
        finally:
            self._board.end(self.number)  # what is unfinished is there for any engine again

    def _recover(self, error: Exception, assignment: Assignment) -> None:
        """Make room for a new engine, unless engines keep dying without finishing any shard between."""
        if self._board.stopped:
            return
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, ResurfaceError) and not isinstance(cause, EngineError):
            raise cause from None
        self._kill()
        self._failures += 1
        if self._failures >= self._attempts:
            raise EngineError(
                f"engine {self.number} failed {self._failures} times in a row on checkpoint "
                f"{assignment.checkpoint.name!r}: {one_line(cause)}; see {self._setup.log_path}"
            ) from error
        self._reporter.died(self.number, type(cause).__name__)

    def _load(self, assignment: Assignment) -> None:
        info = assignment.checkpoint
        if self._loaded == info.weights_digest:
            return
        self._reporter.loading(self.number, info.name)
        if self._actor is None or self._architecture != info.architecture:
            self._kill()
            self._start()
        report: LoadReport = ray.get(self._actor.load.remote(info.path), timeout=_LOAD_SECONDS)
        self._loaded, self._architecture = info.weights_digest, info.architecture
        self._loads += 1
        self._reporter.loaded(self.number, info.name, report.swapped, report.seconds)
        for note in report.notes:
            self._reporter.warned(f"{info.name}: {note}")
        self.reports[self._loads] = report

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
        if stats is not None:
            self.stats[self._loads, checkpoint] = stats

    def _read_ahead(self) -> None:
        """Have the actor bring the next checkpoint's files into the page cache, once."""
        assert self._loaded is not None
        upcoming = self._board.upcoming(self._loaded, self._architecture)
        if upcoming is not None and upcoming.weights_digest != self._ahead:
            self._ahead = upcoming.weights_digest
            self._actor.read_ahead.remote(upcoming.path)

    def _start(self) -> None:
        actor_class = ray.remote(
            num_gpus=self._setup.gpus,
            num_cpus=0,  # an engine that held a CPU for the whole run could keep the prune tasks that it waits for out
            scheduling_strategy="SPREAD",
            max_restarts=0,  # the worker replaces its actor itself, with a checkpoint to load
            concurrency_groups={CONTROL: 1},
        )(EngineActor)
        self._actor = actor_class.remote(self._setup)

    def _kill(self) -> None:
        """Ending the process is what frees an engine's memory."""
        if self._actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(self._actor)
        self._actor, self._loaded, self._architecture = None, None, None
