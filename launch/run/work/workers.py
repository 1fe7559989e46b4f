"""The driver's side of an engine: a thread that feeds one actor, writes its results,
and replaces it if it dies.

A finished shard is stored at once, so a death costs only the shards in flight. While
its actor waits for GPUs, a worker holds no work, and the other workers do it all. A
worker whose actor never gets GPUs ends with the run. An actor without progress is
ended, and counts as dead. The board decides what follows from a failure. A worker
with a faulty engine is retired, and the others do its work."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import EngineError, InputError, Json, ResurfaceError
from evaluator.core.liveness import HangWatch, Hung
from evaluator.engine.base import EngineStats, LoadReport
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure, Served, Stage, remarks
from launch.run import events
from launch.run.decide.assignments import (
    Assignment,
    BaseAnswers,
    EngineSetup,
    Shard,
    ShardResult,
    Where,
)
from launch.run.decide.board import Board, Remedy
from launch.run.work.actors import GROUPS, EngineActor, end_process, start_actor
from launch.run.work.cluster import (
    OUT_OF_REACH,
    SOON_SECONDS,
    VERDICT_SECONDS,
    NodeLost,
    lives,
    outcome_of_actor,
)
from launch.run.work.fleet import Worker
from launch.run.work.logs import last_words, size
from launch.sweep.config import Resources

_POLL_SECONDS = 2.0  # between two checks of an actor's progress
_CONTROL_SECONDS = 20  # for an answer that needs no engine
# that work is kept for an actor that starts again on GPUs that were just freed
_RESTART_SECONDS = 30.0
_TELL_SECONDS = 60.0  # without a place, until the user is informed

_FAILURES = (RayError, EngineError, Hung, NodeLost)


class Tally(NamedTuple):
    """What one load of an engine counted for one checkpoint and task. Checkpoints of
    equal weights share a load."""

    where: Where
    report: LoadReport
    stats: EngineStats = EngineStats()
    items: int = 0  # whose records were stored in that time
    seconds: float = 0.0  # of its assignments


class EngineWorker(Worker):
    """Evaluates assignments from the board until none are left."""

    def __init__(
        self,
        number: int,
        setup: EngineSetup,
        *,
        board: Board,
        store: RecordStore,
        questions: Mapping[str, Any],
        resources: Resources,
    ) -> None:
        """`questions`: task key -> object reference of its questions."""
        super().__init__(number, setup.place, board)
        self._setup = setup
        self._store = store
        self._questions = questions
        self._report = board.bus.report
        self._actor: Any = None
        # the digest and the architecture of what the actor holds
        self._held: tuple[str | None, str | None] = None, None
        self._load_report: LoadReport | None = None  # of the present load
        self._counted = EngineStats()  # of the present load, as last noted
        self._noted = 0.0  # when
        self._loads = 0
        self._actor_since = 0.0  # when the actor was asked for
        self.start_seconds = 0.0  # from then until it served a checkpoint
        self._reading: EngineStats | None = None
        self._asked: Any = None  # a reading that has not come yet
        self.tallies: dict[tuple[int, events.Part], Tally] = {}  # by load
        self._log_start = 0  # the byte of the log at which this actor's output begins
        self._loading = HangWatch(resources.load_seconds)
        self._working = HangWatch(resources.stall_seconds)
        self._ahead: str | None = None  # the checkpoint that the actor last read ahead

    def run(self) -> None:
        try:
            while (assignment := self._next()) is not None:
                self._serve(assignment)
        except BaseException as error:  # the driver's thread raises it
            self.failure = error
            self.board.stop()
        finally:
            self._kill()
            self.board.leave(self.number)
            self._report(events.EngineEnded(engine=self.number))

    # ---- a process

    def _next(self) -> Assignment | None:
        """Wait for a process and for work; None if there will never be both."""
        while not self._over() and self.retired is None:
            try:
                if self._has_place():
                    return self.board.take(self.number, *self._held)
            except _FAILURES as error:
                if not self.board.stopped and not self._lost_node(error):
                    self._not_started(error, "its process did not start")
        return None

    def _over(self) -> bool:
        """Whether no work can follow: the node is lost, or the run has ended."""
        return self.gone or self.board.over

    def _has_place(self, seconds: float = math.inf) -> bool:
        """Whether the actor has its node and GPUs. Waits for them for `seconds`, or
        until the run is over."""
        if self.where is not None:
            return True
        if self._actor is None:
            self._actor_since = time.monotonic()
            self._log_start = size(self._setup.log_path)
            self._report(events.Starting(engine=self.number))
            self._actor = start_actor(
                EngineActor, self._setup, concurrency_groups=GROUPS
            )
        pending = self._actor.where.remote()
        started, warned = time.monotonic(), False
        while not self._over():
            ready, _ = ray.wait([pending], timeout=1.0)
            waited = time.monotonic() - started
            if ready:
                self._placed(ray.get(pending), waited)
                return True
            if waited > seconds:
                return False
            if not warned and waited > _TELL_SECONDS:
                warned = True
                self.board.leave(self.number)
                text = self.place.needs
                self._report(events.Unplaced(engine=self.number, text=text))
        return False

    def _placed(self, where: Where, waited: float) -> None:
        self.where = where
        self.board.join(self.number, where.node)
        seconds = round(waited, 3)
        self._report(events.Placed(engine=self.number, text=where.gpu, seconds=seconds))

    def _kill(self) -> None:
        """Kill the actor: an engine frees its memory only when its process ends."""
        if self._actor is not None:
            with suppress(RayError):
                ray.kill(self._actor)
        self._actor, self.where, self._held = None, None, (None, None)
        self._reading = self._asked = None

    # ---- failures

    def _serve(self, assignment: Assignment) -> None:
        stage: Stage = "load"
        try:
            if self._load(assignment.checkpoint):
                stage = "evaluate"
                self._evaluate(assignment)
        except _FAILURES as error:
            self._handle(error, assignment, stage)
        finally:
            self.board.end(self.number)  # any engine may now take the unfinished shards

    def _handle(self, error: Exception, assignment: Assignment, stage: Stage) -> None:
        """Follow the board's decision on a failure. Raises an error that is no
        engine's and no checkpoint's fault."""
        if self.board.stopped:
            return
        if isinstance(error, OUT_OF_REACH):
            outcome = self._outcome(SOON_SECONDS)
            # other engines do the work until Ray knows whether the actor's node is gone
            if outcome is None:
                self.board.end(self.number)
                self.board.leave(self.number)
                error = self._outcome(VERDICT_SECONDS) or error
                if not self.board.over and not self._lost_node(error):
                    self._not_started(error, "it was out of reach")
                return
            error = outcome
        if self._lost_node(error):
            return
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, ResurfaceError) and not isinstance(
            cause, EngineError | InputError
        ):
            raise cause from None
        if self._refuses(error):
            return
        name, task = assignment.part
        failure = Failure(
            checkpoint=name,
            stage=stage,
            reason=self._end_actor(error),
            mendable=isinstance(cause, InputError),
        )
        remedy = self.board.failed(self.number, failure)
        if assignment.part in self.board.unfinished:
            self._report(events.Retried(engine=self.number, checkpoint=name, task=task))
        why = "it failed with one checkpoint after another, last with"
        self._apply(remedy, f"{why} {name!r}: {failure.reason}")

    def _outcome(self, seconds: float) -> Exception | None:
        return outcome_of_actor(self._actor, self.node_id, seconds, self._over)

    def _refuses(self, error: Exception) -> bool:
        """Whether an engine beside another one failed before it ever served: the others
        do its work, and no checkpoint is to blame."""
        if not self.place.visible or self.loaded:
            return False
        self.refused = self._end_actor(error)
        self.dismiss()
        return True

    def _not_started(self, error: Exception, what: str) -> None:
        if self._refuses(error):
            return
        reason = self._end_actor(error)
        self._apply(self.board.not_started(self.number), f"{what}: {reason}")

    def _lost_node(self, error: Exception) -> bool:
        """Whether an error comes from the loss of the actor's node, and so is no
        engine's fault."""
        if isinstance(error, NodeLost):
            self.gone = True
        elif isinstance(error, RayError) and not isinstance(error, RayTaskError):
            self.gone = self.gone or not lives(self.node_id)
        if self.gone:
            self.board.leave(self.number)
            self._warn(f"engine {self.number}: its node is gone; others do its work")
        return self.gone

    def _end_actor(self, error: Exception) -> str:
        """End the actor, whatever is left; returns the failure's cause in one line."""
        reason = last_words(error, self._setup.log_path, self._log_start)
        if isinstance(error, Hung) and self.where is not None:
            # Ray requests a process to end itself; a hung process may never react
            end_process(self.where)
        self._kill()
        self._report(events.Died(engine=self.number, text=reason))
        return reason

    def _warn(self, text: str) -> None:
        self._report(events.Warned(text))

    def _apply(self, remedy: Remedy, why: str) -> None:
        """Retire the engine, or first test whether it can still load a checkpoint
        that has loaded before."""
        known = self.board.known
        if remedy == "probe" and known is not None:
            try:
                while not self._has_place(_RESTART_SECONDS):
                    if self._over():
                        return
                self._hold(known)
            except _FAILURES as error:
                if self._lost_node(error):
                    return
                self._end_actor(error)
                remedy = "retire"
        if remedy == "retire":
            self.retired = f"engine {self.number}: {why}; see {self._setup.log_path}"
            self.board.leave(self.number)
            self._warn(f"engine {self.number} is given no more work: {why}")

    # ---- a checkpoint

    def _load(self, info: CheckpointInfo) -> bool:
        """Load a checkpoint, unless loaded. False: it needs a new actor, which must
        wait for GPUs."""
        if info.engine_keys == self._held:
            return True
        architecture = self._held[1]
        fresh = architecture != info.engine_keys[1] or (
            # On a GPU, only the end of a process reliably frees the memory that
            # another engine needs.
            self.place.on_gpu and not self._setup.config.swap
        )
        if architecture is not None and fresh:
            self._kill()
            if not self._has_place(_RESTART_SECONDS):
                return False
        self._hold(info)
        return True

    def _hold(self, info: CheckpointInfo) -> None:
        """Load a checkpoint, whatever the actor holds. Raises Hung if it takes too
        long."""
        self._report(events.Loading(engine=self.number, checkpoint=info.name))
        pending = self._actor.load.remote(info)
        self._loading.begin(time.monotonic())
        try:
            while not ray.wait([pending], timeout=_POLL_SECONDS)[0]:
                self._check(self._loading)
            report: LoadReport = ray.get(pending)
            self._loading.moved(time.monotonic())
        finally:
            self._loading.end()
        if not self.loaded:
            self.start_seconds = time.monotonic() - self._actor_since
        self.loaded = True
        self._held, self._load_report = info.engine_keys, report
        self._loads, self._counted = self._loads + 1, EngineStats()
        self._report(
            events.Loaded(
                engine=self.number,
                checkpoint=info.name,
                swapped=report.swapped,
                seconds=round(report.seconds, 3),
            )
        )
        for note in report.notes:
            self._warn(f"{info.name}: {note}")
        self.board.loaded(self.number, info)

    def _read_ahead(self) -> None:
        """Let the actor read the next checkpoint's files into the page cache, once."""
        upcoming = self.board.upcoming(self.number, *self._held)
        if upcoming is not None and upcoming.weights_digest != self._ahead:
            self._ahead = upcoming.weights_digest
            self._actor.read_ahead.remote(upcoming.path)

    def _check(self, watch: HangWatch) -> None:
        """Raises Hung or NodeLost if no answer will come."""
        if self.gone and not lives(self.node_id):
            raise NodeLost
        watch.check(time.monotonic())

    # ---- shards

    def _evaluate(self, assignment: Assignment) -> None:
        """Evaluate the assignment's shards, and store each one's records as soon as
        it is finished."""
        shards = self.board.begin(self.number, self._hand_back)
        assignment = replace(assignment, shards=shards)
        name, task = assignment.part
        self._report(
            events.Began(
                engine=self.number, checkpoint=name, task=task, items=assignment.items
            )
        )
        self._noted = began = time.monotonic()
        items = 0
        try:
            self._read_ahead()
            questions = self._questions[assignment.task_key]
            stream = self._actor.evaluate.options(num_returns="streaming").remote(
                assignment, questions, self._answers_of_base(assignment)
            )
            for result in self._results(stream):
                kept = self._keep(assignment, result)
                self._note(assignment.part, result.stats, kept)
                if kept:
                    items += kept
                    # the next checkpoint may only just have been pruned
                    self._read_ahead()
            stats = ray.get(self._actor.stats.remote(), timeout=_CONTROL_SECONDS)
            self._note(assignment.part, stats)
        finally:
            ended = events.Ended(
                engine=self.number,
                checkpoint=name,
                task=task,
                items=items,
                seconds=round(time.monotonic() - began, 3),
            )
            self._report(ended)

    def _hand_back(self, count: int) -> list[Shard]:
        """Shards that the actor has not begun, for another engine's thread. A late
        answer does no harm: the actor skips these shards, so they stay unfinished and
        are assigned again."""
        actor = self._actor  # None while it is being replaced
        # it may hang, and the board waits
        silent = self._working.silence(time.monotonic()) > _CONTROL_SECONDS
        if actor is None or self.gone or silent:
            return []
        try:
            shards: list[Shard] = ray.get(
                actor.hand_back.remote(count), timeout=_CONTROL_SECONDS
            )
        except RayError:
            return []
        return shards

    def _answers_of_base(self, assignment: Assignment) -> BaseAnswers | None:
        """They are complete: the board holds the assignment back until then."""
        source, table = assignment.base, None
        if source is None:
            return None
        if source.missing is None:
            table = self._store.greedy_answers(source.key)
        return BaseAnswers(source, table)

    def _results(self, stream: Any) -> Iterator[ShardResult]:
        """Yield the actor's results. Raises Hung if for too long neither a shard nor
        a step of its engine ends."""
        watch, pulse, steps = self._working, None, None
        watch.begin(time.monotonic())
        try:
            while True:
                if ray.wait([stream], timeout=_POLL_SECONDS)[0]:
                    pending = next(stream, None)
                    if pending is None:
                        return
                    result: ShardResult = ray.get(pending)
                    watch.moved(time.monotonic())
                    yield result
                    # the time that the driver needs in between is no pause
                    watch.begin(time.monotonic())
                elif pulse is None:
                    pulse = self._actor.pulse.remote()
                elif ray.wait([pulse], timeout=0)[0]:
                    before, steps, pulse = steps, ray.get(pulse), None
                    if steps != before:
                        watch.moved(time.monotonic())
                self._check(watch)
        finally:
            watch.end()

    def _keep(self, assignment: Assignment, result: ShardResult) -> int:
        """Write a shard's records; returns their items. None if every answer failed
        and another engine can try first."""
        (name, task), failed, shard = assignment.part, result.failed, result.shard
        unsure = failed is not None and assignment.refusal is None
        if unsure and self.board.doubts(self.number, shard):
            self._report(events.Retried(engine=self.number, checkpoint=name, task=task))
            return 0
        if result.part:
            self._store.append(assignment.key, result.part)
        first = failed is not None and assignment.part not in self.board.unmeasured
        if first and self._store.measured(assignment.key):
            failed = None
        self.board.finished(self.number, shard, failed)
        return len(shard.questions)

    def _note(
        self, part: events.Part, stats: EngineStats | None, items: int = 0
    ) -> None:
        """Add what the engine counted since the last note, and the seconds since then.
        A death or an interruption loses only what follows."""
        if stats is None or self.where is None or self._load_report is None:
            return
        load = self._loads, part
        before = self.tallies.get(load, Tally(self.where, self._load_report))
        more, self._counted = stats.since(self._counted), stats
        since, self._noted = self._noted, time.monotonic()
        total = before.stats.plus(more)
        self.tallies[load] = before._replace(
            where=self.where,
            stats=total,
            items=before.items + items,
            seconds=before.seconds + self._noted - since,
        )
        known = remarks(*before.stats.counted)
        for kind, note in remarks(*total.counted).items():
            if kind not in known:
                self._warn(f"{part[0]}: {note}")

    def reading(self) -> EngineStats | None:
        """What the engine has counted since its last load, as it last told; asks it
        again. None: it has not told yet, or starts: the time of a start is nobody's
        rate. Returns at once."""
        actor = self._actor
        if self._held == (None, None):
            return None
        try:
            if self._asked is None and actor is not None:
                self._asked = actor.stats.remote()
            elif self._asked is not None and ray.wait([self._asked], timeout=0)[0]:
                self._reading, self._asked = ray.get(self._asked), None
        except RayError:
            self._reading = self._asked = None
        return self._reading

    def served(self) -> list[Served]:
        """A row for each load, checkpoint and task."""
        rows = []
        for (_, (name, task)), tally in list(self.tallies.items()):
            where, report, stats, items, seconds = tally
            shares: Json = stats.shares()
            rows.append(
                Served(
                    engine=self.number,
                    checkpoint=name,
                    task=task,
                    seconds=round(seconds, 3),
                    node=where.node,
                    node_id=where.node_id,
                    device=where.device,
                    gpu=where.gpu,
                    items=items,
                    scoring=report.scoring,
                    notes=[*report.notes, *remarks(*stats.counted).values()],
                    setup=dict(report.setup),
                    abilities=dict(report.abilities),
                    kv_scales=report.kv_scales,
                    **asdict(stats),
                    **shares,
                )
            )
        return rows
