"""The driver's side of an engine: a thread that feeds one actor, writes its results, and replaces it if it dies.

A finished shard is stored at once, so a death costs only the shards in flight. While its actor waits for GPUs, a worker
holds no work, and the other workers do it all. A worker whose actor never gets GPUs ends with the run. An actor without
progress is ended, and counts as dead. The board decides what follows from a failure. A worker with a faulty engine is
retired, and the others do its work.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import ray
from ray.exceptions import RayError, RayTaskError

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import EngineError, InputError, ResurfaceError
from evaluator.core.liveness import HangWatch, Hung
from evaluator.engine.base import EngineStats, LoadReport
from evaluator.store.records import RecordStore
from launch.run.decide.assignments import Assignment, EngineSetup, Shard, ShardResult, Where
from launch.run.decide.base_answers import BaseAnswers
from launch.run.decide.board import Board
from launch.run.decide.events import Event, Listener
from launch.run.decide.failures import Remedy, Trouble
from launch.run.decide.fleet import TimeLimits
from launch.run.decide.nodes import Place
from launch.run.work.actors import GROUPS, EngineActor, end_process, start_actor
from launch.run.work.cluster import OUT_OF_REACH, SOON_SECONDS, VERDICT_SECONDS, NodeLost, fate, lives
from launch.run.work.engine_log import cut, last_words, size

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0  # between two checks of an actor's progress
_CONTROL_SECONDS = 20  # for an answer that needs no engine
_RESTART_SECONDS = 30.0  # that work is kept for an actor that starts again on GPUs that were just freed
_TELL_SECONDS = 60.0  # without a place, until the user is informed

_FAILURES = (RayError, EngineError, Hung, NodeLost)


class EngineWorker(threading.Thread):
    """Evaluates assignments from the board until none are left. `failure` holds the error that stopped it, if any."""

    def __init__(
        self,
        number: int,
        setup: EngineSetup,
        *,
        board: Board,
        store: RecordStore,
        questions: Mapping[str, Any],
        report: Listener,
        limits: TimeLimits,
    ) -> None:
        """`questions`: task key -> object reference of its questions."""
        super().__init__(name=f"engine-{number}", daemon=True)
        self.number = number
        self.failure: BaseException | None = None
        self.retired: str | None = None  # why its engine receives no more work
        self._gone = False  # its node was lost
        self.nodes: set[str] = set()  # hosts on which its actors ran
        self._setup = setup
        self._board = board
        self._store = store
        self._questions = questions
        self._report = report
        self._limits = limits
        self._where: Where | None = None  # None: the actor, if it exists, has no place yet
        self._actor: Any = None
        self._loaded: str | None = None
        self._architecture: str | None = None
        self._loads = 0
        self._log_start = 0  # the byte of the log at which this actor's output begins
        self._loading = HangWatch(limits.load_seconds)
        self._working = HangWatch(limits.stall_seconds)
        self.stats: dict[tuple[int, str], tuple[Where, EngineStats]] = {}  # by load and checkpoint
        self.reports: dict[int, LoadReport] = {}  # by load
        self._stage: Literal["load", "evaluate"] = "load"
        self._ahead: str | None = None  # the checkpoint that the actor last read ahead

    @property
    def place(self) -> Place:
        return self._setup.place

    @property
    def node_id(self) -> str:
        """The node of its actor, or its expected node."""
        where = self._where
        return self.place.node_id if where is None else where.node_id

    @property
    def serving(self) -> bool:
        """Whether it takes work, now or as soon as it has a process."""
        return self.is_alive() and not self._gone and self.retired is None

    def lose_node(self) -> None:
        """Its node is gone: it ends, and others take its unfinished work.

        If Ray has put its actor on another node meanwhile, it first finishes its current work.
        """
        self._gone = True
        self._board.leave(self.number, for_good=True)

    def run(self) -> None:
        try:
            while (assignment := self._next()) is not None:
                self._serve(assignment)
        except BaseException as error:  # the driver's thread raises it
            self.failure = error
            self._board.stop()
        finally:
            self._kill()
            self._board.leave(self.number)
            self._report(Event(kind="left", engine=self.number))

    def _next(self) -> Assignment | None:
        """Wait for a process and for work; None if there will never be both."""
        while not self._board.over and self.retired is None and not self._gone:
            try:
                if self._has_place():
                    return self._board.take(self.number, self._loaded, self._architecture)
            except _FAILURES as error:
                if not self._board.stopped and not self._left(error):
                    reason = self._lose(error)
                    self._apply(self._board.not_started(self.number), f"its process did not start: {reason}")
        return None

    def _has_place(self, seconds: float | None = None) -> bool:
        """Whether the actor has its node and GPUs. Waits for them for `seconds`, or until the run is over."""
        if self._where is not None:
            return True
        if self._actor is None:
            self._log_start = size(self._setup.log_path)
            self._actor = start_actor(EngineActor, self._setup, concurrency_groups=GROUPS)
        started, told = time.monotonic(), False
        place = self._actor.where.remote()
        while not self._board.over and not self._gone:
            found, _ = ray.wait([place], timeout=1.0)
            waited = time.monotonic() - started
            if found:
                where: Where = ray.get(place)
                self._where = where
                self.nodes.add(where.node)
                self._limits.add(self.number)
                self._board.join(self.number, where.device)
                return True
            if seconds is not None and waited > seconds:
                return False
            self._limits.check(self._setup.place.gpus, started)
            if not told and waited > _TELL_SECONDS:
                told = True
                self._board.leave(self.number)
                self._report(Event(kind="unplaced", engine=self.number, gpus=self._setup.place.gpus))
        return False

    def _serve(self, assignment: Assignment) -> None:
        self._stage = "load"
        try:
            if self._load(assignment):
                self._stage = "evaluate"
                self._evaluate(assignment)
        except _FAILURES as error:
            self._failed(error, assignment)
        finally:
            self._board.end(self.number)  # any engine may now take the unfinished shards

    def _failed(self, error: Exception, assignment: Assignment) -> None:
        """Report a failure to the board and follow its decision.

        Raises an error that is no engine's and no checkpoint's fault.
        """
        if self._board.stopped:
            return
        if isinstance(error, OUT_OF_REACH):
            found = self._fate(SOON_SECONDS)
            if found is None:
                self._out_of_reach(error)
                return
            error = found
        if self._left(error):
            return
        cause = error.cause if isinstance(error, RayTaskError) else error
        mendable = isinstance(cause, InputError)
        if isinstance(cause, ResurfaceError) and not isinstance(cause, EngineError) and not mendable:
            raise cause from None
        stage, reason = self._stage, self._lose(error)
        remedy = self._board.failed(self.number, Trouble(stage=stage, reason=reason, mendable=mendable))
        self._apply(
            remedy, f"it failed with one checkpoint after another, last with {assignment.checkpoint.name!r}: {reason}"
        )

    def _fate(self, seconds: float) -> Exception | None:
        return fate(self._actor, self.node_id, seconds, lambda: self._gone or self._board.over)

    def _out_of_reach(self, error: Exception) -> None:
        """Other engines do the work until Ray knows whether the actor's node is gone."""
        self._board.end(self.number)
        self._board.leave(self.number)
        error = self._fate(VERDICT_SECONDS) or error
        if not self._board.over and not self._left(error):
            self._apply(self._board.not_started(self.number), f"it was out of reach: {self._lose(error)}")

    def _left(self, error: Exception) -> bool:
        """Whether an error comes from the loss of the actor's node, and so is no engine's fault."""
        if not self._gone and not isinstance(error, RayTaskError):
            self._gone = isinstance(error, NodeLost) or (isinstance(error, RayError) and not lives(self.node_id))
        if self._gone:
            self._board.leave(self.number)
            self._warn(f"engine {self.number}: its node is gone; others do its work")
        return self._gone

    def _lose(self, error: Exception) -> str:
        """End the actor, whatever is left; returns the failure's cause in one line."""
        reason = last_words(error, self._setup.log_path, self._log_start)
        if isinstance(error, Hung) and self._where is not None:
            end_process(self._where)  # Ray requests a process to end itself; a hung process may never react
        self._kill()
        self._report(Event(kind="died", engine=self.number, text=reason))
        return reason

    def _warn(self, text: str) -> None:
        self._report(Event(kind="warned", text=text))

    def _apply(self, remedy: Remedy, why: str) -> None:
        """Retire the engine, or first test whether it can still load a checkpoint that has loaded before."""
        known = self._board.known
        if remedy == "probe" and known is not None:
            try:
                while not self._has_place(_RESTART_SECONDS):
                    if self._board.over or self._gone:
                        return
                self._hold(known)
                self._board.proved(self.number)
            except _FAILURES as error:
                if self._left(error):
                    return
                self._lose(error)
                remedy = "retire"
        if remedy == "retire":
            self.retired = f"engine {self.number}: {why}; see {self._setup.log_path}"
            self._board.leave(self.number)
            self._warn(f"engine {self.number} is given no more work: {why}")

    def _load(self, assignment: Assignment) -> bool:
        """Load the assignment's checkpoint, unless loaded. False: it needs a new actor, which must wait for GPUs."""
        info = assignment.checkpoint
        if self._loaded == info.weights_digest:
            return True
        # On a GPU, only the end of a process reliably frees the memory that another engine needs.
        alone = self._architecture is not None and self.place.gpus > 0 and not self._setup.config.swap
        if alone or self._architecture not in (None, info.architecture):
            self._kill()
            if not self._has_place(_RESTART_SECONDS):
                return False
        self._hold(info)
        return True

    def _hold(self, info: CheckpointInfo) -> None:
        """Load a checkpoint, whatever the actor holds."""
        self._report(Event(kind="loading", engine=self.number, checkpoint=info.name))
        report: LoadReport = self._answer(self._actor.load.remote(info), self._loading)
        self._loaded, self._architecture = info.weights_digest, info.architecture
        self._loads += 1
        swapped, seconds = report.swapped, report.seconds
        self._report(Event(kind="loaded", engine=self.number, checkpoint=info.name, swapped=swapped, seconds=seconds))
        for note in report.notes:
            self._warn(f"{info.name}: {note}")
        self.reports[self._loads] = report
        self._board.loaded(self.number, info)

    def _answer(self, pending: Any, watch: HangWatch) -> Any:
        """Return the result of a call. Raises Hung if it takes too long."""
        watch.begin(time.monotonic())
        try:
            while not ray.wait([pending], timeout=_LOOK_SECONDS)[0]:
                self._check(watch)
            answer = ray.get(pending)
            watch.moved(time.monotonic())
            return answer
        finally:
            watch.end()

    def _results(self, stream: Any) -> Iterator[ShardResult]:
        """Yield the actor's results. Raises Hung if for too long neither a shard nor a step of its engine ends."""
        watch, pulse, steps = self._working, None, None
        watch.begin(time.monotonic())
        try:
            while True:
                if ray.wait([stream], timeout=_LOOK_SECONDS)[0]:
                    pending = next(stream, None)
                    if pending is None:
                        return
                    result: ShardResult = ray.get(pending)
                    watch.moved(time.monotonic())
                    yield result
                    watch.begin(time.monotonic())  # the time that the driver needs in between is no pause
                elif pulse is None:
                    pulse = self._actor.pulse.remote()
                elif ray.wait([pulse], timeout=0)[0]:
                    before, steps, pulse = steps, ray.get(pulse), None
                    if steps != before:
                        watch.moved(time.monotonic())
                self._check(watch)
        finally:
            watch.end()

    def _check(self, watch: HangWatch) -> None:
        """Raises Hung or NodeLost if no answer will come. Also keeps the engine's log short."""
        if cut(self._setup.log_path):
            self._log_start = 0
        if self._gone and not lives(self.node_id):
            raise NodeLost
        watch.check(time.monotonic())

    def _evaluate(self, assignment: Assignment) -> None:
        def give_up(count: int) -> list[Shard]:
            actor = self._actor  # None while it is being replaced
            if actor is None or self._gone or self._working.silence(time.monotonic()) > _CONTROL_SECONDS:
                return []  # it may hang, and the board waits
            # A late answer does no harm: the actor skips these shards, so they stay unfinished and are assigned again.
            with contextlib.suppress(RayError):
                given: list[Shard] = ray.get(actor.give_up.remote(count), timeout=_CONTROL_SECONDS)
                return given
            return []

        shards = self._board.begin(self.number, give_up)
        items = sum(len(shard.questions) for shard in shards)
        name, task = assignment.part
        self._report(Event(kind="began", engine=self.number, checkpoint=name, task=task, items=items))
        try:
            self._read_ahead()
            stream = self._actor.evaluate.options(num_returns="streaming").remote(
                assignment.job, shards, self._questions[assignment.job.task_key], self._base_answers(assignment)
            )
            for result in self._results(stream):
                if not self._keep(assignment, result):
                    continue
                self._report(Event(kind="advanced", engine=self.number, items=len(result.shard.questions)))
                self._read_ahead()  # the next checkpoint may only just have been pruned
            self._keep_stats(assignment.checkpoint.name)
        finally:
            self._report(Event(kind="ended", engine=self.number))

    def _keep(self, assignment: Assignment, result: ShardResult) -> bool:
        """Write a shard's records, unless every answer failed and another engine can try first."""
        name, task = assignment.checkpoint.name, assignment.task
        failed = result.failed
        if failed is not None and assignment.job.refusal is None and self._board.doubts(self.number, result.shard):
            return False
        self._store.append(name, task, result.shard.name, result.part)
        if failed is not None and not self._board.unmeasured(assignment.part) and self._store.measured(name, task):
            failed = None
        self._board.finished(self.number, result.shard, failed)
        return True

    def _base_answers(self, assignment: Assignment) -> BaseAnswers | None:
        """The base's answers. They are complete, because the board holds the assignment back until then."""
        base = assignment.job.base
        if base is None:
            return None
        return BaseAnswers(base, None if base.name is None else self._store.greedy_answers(base.name, assignment.task))

    def _keep_stats(self, checkpoint: str) -> None:
        stats: EngineStats | None = ray.get(self._actor.stats.remote(), timeout=_CONTROL_SECONDS)
        if stats is not None and self._where is not None:
            self.stats[self._loads, checkpoint] = self._where, stats

    def _read_ahead(self) -> None:
        """Let the actor read the next checkpoint's files into the page cache, once."""
        assert self._loaded is not None
        upcoming = self._board.upcoming(self.number, self._loaded, self._architecture)
        if upcoming is not None and upcoming.weights_digest != self._ahead:
            self._ahead = upcoming.weights_digest
            self._actor.read_ahead.remote(upcoming.path)

    def _kill(self) -> None:
        """Kill the actor: an engine frees its memory only when its process ends."""
        if self._actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(self._actor)
        self._actor, self._where, self._loaded, self._architecture = None, None, None, None
        self._limits.remove(self.number)
