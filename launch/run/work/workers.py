"""The driver's side of an engine: it feeds one actor, writes its results, and replaces
it if it dies. One thread does so for all engines (`turn`).

A finished shard is stored at once, so a death costs only the shards in flight. While
its actor waits for GPUs, a worker holds no work, and the other workers do it all. A
worker whose actor never gets GPUs ends with the run. An actor without progress is
ended, and counts as dead. The board decides what follows from a failure. A worker
with a faulty engine is retired, and the others do its work."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import EngineError, InputError, ResurfaceError
from evaluator.core.liveness import HangWatch, Hung
from evaluator.core.records import EngineStats
from evaluator.engine.base import LoadReport
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure, Served, Stage
from launch.run import events
from launch.run.decide.assignments import (
    Assignment,
    BaseAnswers,
    EngineSetup,
    ShardResult,
    Shards,
    Where,
)
from launch.run.decide.board import Board, Remedy
from launch.run.work.actors import EngineActor, NewTask, end_process, start_actor
from launch.run.work.cluster import (
    OUT_OF_REACH,
    SOON_SECONDS,
    VERDICT_SECONDS,
    NodeLost,
    lives,
    outcome_of_actor,
)
from launch.run.work.fleet import Result, Steps, Wait, Worker
from launch.run.work.logs import last_words, size
from launch.sweep.config import Resources

_POLL_SECONDS = 2.0  # between two checks of an actor's progress
# that work is kept for an actor that starts again on GPUs that were just freed
_RESTART_SECONDS = 30.0
_TELL_SECONDS = 60.0  # without a place, until the user is informed

IDLE_SECONDS = 60.0  # an engine without work is kept this long
_WAKE_SECONDS = 1.0  # it looks again this often, even if nothing has changed

_FILE_SECONDS = 0.005  # between two looks at a file's thread
_FAILURES = (RayError, EngineError, Hung, NodeLost)


def turn(workers: Sequence[Worker], seconds: float) -> None:
    """Let each engine go on whose answer has come, or whose time is over. Waits up to
    `seconds` for the first."""
    alive = [worker for worker in workers if worker.is_alive()]
    answers = [each.waits.answer for each in alive if each.waits.answer is not None]
    now, came = time.monotonic(), set[Any]()
    for worker in alive:
        seconds = 0 if worker.is_due(now) else min(seconds, worker.waits.until - now)
    if not answers:
        time.sleep(seconds)
    else:
        ready, left = ray.wait(answers, timeout=seconds)
        if ready and left:
            ready += ray.wait(left, num_returns=len(left), timeout=0)[0]
        came.update(ready)
    now = time.monotonic()
    for worker in alive:
        answer = worker.waits.answer
        if (has := answer in came) or worker.is_due(now):
            worker.go_on(has)


def _begun(call: Callable[..., Result], *given: object) -> Future[Result]:
    """The outcome of a call in a thread: a daemon, so that a process ends beside a disk
    that never answers."""
    outcome: Future[Result] = Future()

    def work() -> None:
        try:
            outcome.set_result(call(*given))
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=work, name="files", daemon=True).start()
    return outcome


def _elsewhere(call: Callable[..., Result], *given: object) -> Steps[Result]:
    """Read or write files in a thread: a slow disk must not keep the other engines
    waiting."""
    outcome = _begun(call, *given)
    while not outcome.done():
        yield Wait(time.monotonic() + _FILE_SECONDS)
    return outcome.result()


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
        self._counted = EngineStats()  # of the present load, as last noted
        self._noted = 0.0  # when
        self._actor_since = 0.0  # when the actor was asked for
        self.start_seconds = 0.0  # from then until it served a checkpoint
        self._reading: EngineStats | None = None
        self._asked: Any = None  # a reading that has not come yet
        self._log_start = 0  # the byte of the log at which this actor's output begins
        self._loading = HangWatch(resources.load_seconds)
        self._working = HangWatch(resources.stall_seconds)
        self._ahead: str | None = None  # the checkpoint that the actor last read ahead
        self._stream = 0  # the number of its last stream
        self._fed = set[str]()  # the tasks of that
        # by task in hand: seconds, as in a tally, and the items that were stored
        self._turns: dict[str, tuple[float, int]] = {}
        self._shown = ""  # the task on which it says that it is

    def run(self) -> Steps[None]:
        try:
            while (assignment := (yield from self._next())) is not None:
                yield from self._serve(assignment)
        except Exception as error:  # `Fleet.check` raises it
            self.failure = error
            self.board.stop()
        finally:
            self._kill()
            self.board.leave(self.number)
            self._report(events.EngineEnded(engine=self.number))

    # ---- a process

    def close(self) -> None:
        self._actor = None
        super().close()

    def _next(self) -> Steps[Assignment | None]:
        """Wait for a process and for work; None if there will never be both."""
        while not self._over() and self.retired is None:
            try:
                if (yield from self._has_place()):
                    return (yield from self._taken())
            except _FAILURES as error:
                if not self.board.stopped and not self._lost_node(error):
                    yield from self._not_started(error, "its process did not start")
        return None

    def _taken(self) -> Steps[Assignment | None]:
        """Wait for work; None if there will be no more, or others need the GPUs."""
        since = time.monotonic()
        while not (self.board.stopped or self.dismissed):
            assignment = self.board.take(self.number, *self._held)
            long = time.monotonic() - since > IDLE_SECONDS
            if assignment is not None or self.board.is_useless(self.number, long=long):
                return assignment
            yield Wait(time.monotonic() + _WAKE_SECONDS, work=True)
        return None

    def _over(self) -> bool:
        """Whether no work can follow: others do it, or the run has ended."""
        return self.gone or self.dismissed or self.board.over

    def _has_place(self, seconds: float = math.inf) -> Steps[bool]:
        """Whether the actor has its node and GPUs. Waits for them for `seconds`, or
        until the run is over."""
        if self.where is not None:
            return True
        if self._actor is None:
            self._actor_since = time.monotonic()
            self._log_start = size(self._setup.log_path)
            self._report(events.Starting(engine=self.number))
            self._actor = start_actor(EngineActor, self._setup)
        pending = self._actor.where.remote()
        started, warned = time.monotonic(), False
        while not self._over():
            ready = yield Wait(time.monotonic() + 1.0, pending)
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

    def _serve(self, assignment: Assignment) -> Steps[None]:
        stage: Stage = "load"
        try:
            if (yield from self._load(assignment.checkpoint)):
                stage = "evaluate"
                yield from self._evaluate(assignment.checkpoint.name)
        except _FAILURES as error:
            yield from self._handle(error, assignment, stage)
        finally:
            self.board.end(self.number)  # any engine may now take the unfinished shards

    def _handle(
        self, error: Exception, assignment: Assignment, stage: Stage
    ) -> Steps[None]:
        """Follow the board's decision on a failure. Raises an error that is no
        engine's and no checkpoint's fault."""
        if self.board.stopped:
            return
        if isinstance(error, OUT_OF_REACH):
            outcome = yield from self._outcome(SOON_SECONDS)
            # other engines do the work until Ray knows whether the actor's node is gone
            if outcome is None:
                self.board.end(self.number)
                self.board.leave(self.number)
                error = (yield from self._outcome(VERDICT_SECONDS)) or error
                if not self.board.over and not self._lost_node(error):
                    yield from self._not_started(error, "it was out of reach")
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
        # once, however many tasks it had in hand
        if name in {checkpoint for checkpoint, _ in self.board.unfinished}:
            self._retried(name, task)
        why = "it failed with one checkpoint after another, last with"
        yield from self._apply(remedy, f"{why} {name!r}: {failure.reason}")

    def _retried(self, name: str, task: str) -> None:
        self._report(events.Retried(engine=self.number, checkpoint=name, task=task))

    def _outcome(self, seconds: float) -> Steps[Exception | None]:
        return outcome_of_actor(self._actor, self.node_id, seconds, self._over)

    def _refuses(self, error: Exception) -> bool:
        """Whether an engine beside another one failed before it ever served: the others
        do its work, and no checkpoint is to blame."""
        if not self.place.visible or self.loaded:
            return False
        self.refused = self._end_actor(error)
        self.dismiss()
        return True

    def _not_started(self, error: Exception, what: str) -> Steps[None]:
        if self._refuses(error):
            return
        reason = self._end_actor(error)
        remedy = self.board.not_started(self.number)
        yield from self._apply(remedy, f"{what}: {reason}")

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

    def _apply(self, remedy: Remedy, why: str) -> Steps[None]:
        """Retire the engine, or first test whether it can still load a checkpoint
        that has loaded before."""
        known = self.board.known
        if remedy == "probe" and known is not None:
            try:
                while not (yield from self._has_place(_RESTART_SECONDS)):
                    if self._over():
                        return
                yield from self._hold(known)
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

    def _load(self, info: CheckpointInfo) -> Steps[bool]:
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
            if not (yield from self._has_place(_RESTART_SECONDS)):
                return False
        yield from self._hold(info)
        return True

    def _hold(self, info: CheckpointInfo) -> Steps[None]:
        """Load a checkpoint, whatever the actor holds. Raises Hung if it takes too
        long."""
        self._report(events.Loading(engine=self.number, checkpoint=info.name))
        pending = self._actor.load.remote(info)
        self._loading.begin(time.monotonic())
        try:
            while not (yield Wait(time.monotonic() + _POLL_SECONDS, pending)):
                self._check(self._loading)
            report: LoadReport = ray.get(pending)
            self._loading.moved(time.monotonic())
        finally:
            self._loading.end()
        if not self.loaded:
            self.start_seconds = time.monotonic() - self._actor_since
        self.loaded = True
        self._held, self._counted = info.engine_keys, EngineStats()
        where = self.where
        assert where is not None
        served = Served(
            engine=self.number,
            checkpoint=info.name,
            node=where.node,
            node_id=where.node_id,
            device=where.device,
            gpu=where.gpu,
            scoring=report.scoring,
            notes=[*report.notes],
            setup=dict(report.setup),
            abilities=dict(report.abilities),
            kv_scales=report.kv_scales,
        )
        self._report(
            events.Loaded(
                engine=self.number,
                checkpoint=info.name,
                swapped=report.swapped,
                seconds=round(report.seconds, 3),
                served=served,
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

    def _evaluate(self, name: str) -> Steps[None]:
        """Evaluate shards of a checkpoint until none are left, and store each one's
        records as soon as it is finished."""
        if not self.board.begin(self.number):  # others were faster
            return
        self._noted = time.monotonic()
        try:
            self._tell(name, self.board.hand(self.number))
            self._read_ahead()
            # also what was given to a stream that had just ended
            while hand := self.board.hand(self.number):
                yield from self._feed(name, hand)
        finally:
            self._tell(name, ())

    def _tell(self, name: str, hand: Shards) -> None:
        """Report which tasks have ended, and on which the engine is: the first one that
        it has in hand."""
        tasks = dict.fromkeys(shard.task for shard in hand)
        for task in [each for each in self._turns if each not in tasks]:
            seconds, items = self._turns.pop(task)
            ended = events.Ended(
                engine=self.number,
                checkpoint=name,
                task=task,
                items=items,
                seconds=round(seconds, 3),
            )
            self._report(ended)
        first = self._shown if self._shown in tasks else next(iter(tasks), "")
        if first and first != self._shown:
            items = self.board.left(self.number, first)
            self._report(
                events.Began(
                    engine=self.number, checkpoint=name, task=first, items=items
                )
            )
        self._shown = first
        for task in tasks:
            self._turns.setdefault(task, (0.0, 0))

    def _feed(self, name: str, hand: Shards) -> Steps[None]:
        """Keep a stream of the actor full, as long as there are shards. Raises Hung if
        for too long neither a shard nor a step of its engine ends."""
        self._stream += 1
        self._fed.clear()
        more = yield from self._fresh(hand)
        evaluate = self._actor.evaluate.options(num_returns="streaming")
        stream = evaluate.remote(self._stream, hand, *more)
        watch, pulse, steps = self._working, None, None
        watch.begin(time.monotonic())
        try:
            while True:
                if (yield Wait(time.monotonic() + _POLL_SECONDS, stream)):
                    pending = next(stream, None)
                    if pending is None:
                        return
                    result: ShardResult = ray.get(pending)
                    watch.moved(time.monotonic())
                    kept = yield from self._keep(name, result)
                    if shards := self.board.more(self.number):
                        more = yield from self._fresh(shards)
                        self._actor.feed.remote(self._stream, shards, *more)
                    self._note((name, result.shard.task), result.stats, kept)
                    self._tell(name, self.board.hand(self.number))
                    if kept:
                        # the next checkpoint may only just have been pruned
                        self._read_ahead()
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

    def _fresh(self, shards: Shards) -> Steps[list[Any]]:
        """The tasks of shards that the stream has not had yet, then the questions of
        each."""
        tasks, questions = list[NewTask](), list[Any]()
        for task in dict.fromkeys(shard.task for shard in shards):
            if task not in self._fed:
                self._fed.add(task)
                assignment = self.board.assignment(self.number, task)
                answers = yield from self._answers_of_base(assignment)
                tasks.append((assignment, answers))
                questions.append(self._questions[assignment.task_key])
        return [tasks, *questions]

    def _answers_of_base(self, assignment: Assignment) -> Steps[BaseAnswers | None]:
        """They are complete: the board holds the assignment back until then."""
        source, table = assignment.base, None
        if source is None:
            return None
        if source.missing is None:
            table = yield from _elsewhere(self._store.greedy_answers, source.key)
        return BaseAnswers(source, table)

    def _keep(self, name: str, result: ShardResult) -> Steps[int]:
        """Write a shard's records; returns their items: none if every answer failed
        and another engine can try first."""
        failed, shard = result.failed, result.shard
        assignment = self.board.assignment(self.number, shard.task)
        unsure = failed is not None and assignment.refusal is None
        if unsure and self.board.doubts(self.number, shard):
            self._retried(name, shard.task)
            return 0
        if result.part:
            yield from _elsewhere(self._store.append, assignment.key, result.part)
        first = failed is not None and assignment.part not in self.board.unmeasured
        if first and self._store.measured(assignment.key):
            failed = None
        self.board.finished(self.number, shard, failed)
        return len(shard.questions)

    def _note(self, part: events.Part, stats: EngineStats, items: int) -> None:
        """Report what the engine counted since the last note, and the seconds since
        then. A death or an interruption loses only what follows."""
        now = time.monotonic()
        seconds, self._noted = now - self._noted, now
        before_now, count = self._turns[part[1]]
        self._turns[part[1]] = before_now + seconds, count + items
        before, self._counted = self._counted, stats
        self._report(
            events.Counted(
                engine=self.number,
                checkpoint=part[0],
                task=part[1],
                items=items,
                seconds=round(seconds, 3),
                stats=stats.since(before),
            )
        )
        for kind, note in stats.remarks.items():
            if kind not in before.remarks:
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
