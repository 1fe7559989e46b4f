"""Decides which engine does which work, without Ray. All engine threads of a driver
share one board.

A checkpoint's shards stay on the engine that has loaded it. A free engine first
takes more work on its checkpoint, then a checkpoint of the same architecture
(swapped in place), then any other (a new engine). Among equals, bases that other
checkpoints wait for come first. Work that has failed comes last.

Some probes read the base's answers (`Assignment.after`). Their work waits until the
base's shards of that task are finished. If no work is ready, a free engine takes
over shards that another engine has not begun. It takes them from the busiest engine,
but first from engines on an awaited base. The unfinished work of an ended engine
returns to the board.

The list of attempts decides what follows from a failure (`attempts.py`). A checkpoint
that is set aside leaves the board, together with the work that needs its answers."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from evaluator.asking.questions import Posed
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.probes.stream import IN_FLIGHT
from evaluator.store.run_json import Failure
from launch.run import attempts
from launch.run.attempts import Log
from launch.run.decide.assignments import (
    Assignment,
    Shard,
    Shards,
    begun,
    distance,
    halves_of,
)
from launch.run.events import Advanced, Attempt, Outcome, Part
from launch.run.state import Bus

IDLE_SECONDS = 60.0  # an engine without work is kept this long
_SPARE = 4  # unfinished shards of an engine, which it may have begun
_WAKE_SECONDS = 1.0  # a waiting engine checks this often, even if nothing has changed
HandBack = Callable[[int], Sequence[Shard]]
Remedy = Literal["go on", "probe", "retire"]  # for an engine after a failure


@dataclass(slots=True)
class _Busy:
    assignment: Assignment
    unfinished: dict[str, Shard]
    hand_back: HandBack | None = None  # None: still loading, no shard is begun
    # when to request shards again: it just had none to give, and a hundred engines may
    # be idle
    ask_after: float = 0.0

    def give_back(self, count: int) -> Assignment | None:
        """Up to `count` shards that are not begun; None without any."""
        shards = tuple(self.unfinished.values())[-count:]
        if self.hand_back is not None:
            shards = tuple(self.hand_back(count))
        for shard in shards:
            del self.unfinished[shard.name]
        return replace(self.assignment, shards=shards) if shards else None

    @property
    def rest(self) -> Assignment:
        """What is left of the assignment."""
        return replace(self.assignment, shards=tuple(self.unfinished.values()))


class Source(Protocol):
    """Adds work to the board, and closes after its last addition."""

    @property
    def open(self) -> bool: ...


@dataclass(slots=True)
class Board:
    """Thread-safe. Other threads may read the public fields at any time."""

    bus: Bus = field(default_factory=Bus)  # with the list of attempts
    attempts: int = 3
    known: CheckpointInfo | None = None  # a checkpoint that has loaded
    engines: set[int] = field(default_factory=set)  # with a process
    # the nodes on which an engine's processes ran, by name
    hosts: dict[int, set[str]] = field(default_factory=dict)
    # Checkpoints behind URLs, and the engines that serve these and no others.
    remote: set[str] = field(default_factory=set)
    remote_engines: set[int] = field(default_factory=set)
    # by task key
    questions: Mapping[str, Sequence[Posed]] = field(default_factory=dict)
    source: Source | None = None  # `take` waits for an open one
    short: bool = False  # prune jobs wait for GPUs that engines hold
    stopped: bool = False
    failures: list[Failure] = field(default_factory=list)  # work given up; only grows
    # the error of parts in which every answer failed so far
    unmeasured: dict[Part, str] = field(default_factory=dict)
    _waiting: list[Assignment] = field(default_factory=list)
    _busy: dict[int, _Busy] = field(default_factory=dict)
    # parts that will not get all their records
    _without: set[Part] = field(default_factory=set)
    # engines that receive no more work
    _dismissed: set[int] = field(default_factory=set)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def log(self) -> Log:
        return self.bus.state.attempts

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def spare(self) -> bool:
        """Whether there is work for one more engine."""
        with self._changed:
            held = [len(busy.unfinished) for busy in self._busy.values()]
            return bool(self._waiting) or max(held, default=0) > _SPARE

    def count_left(self) -> int:
        """The items without records, of the work that is known."""
        with self._changed:
            held = [busy.rest for busy in self._busy.values()]
            return sum(each.items for each in (*self._waiting, *held))

    @property
    def over(self) -> bool:
        """Whether there is no more work for any engine, now or later."""
        with self._changed:
            return self.stopped or not (self._waiting or self._busy or self._open)

    @property
    def _open(self) -> bool:
        """Whether the source may still add work."""
        return self.source is not None and self.source.open

    @property
    def unfinished(self) -> set[Part]:
        """The parts on the board that do not have all their records yet."""
        with self._changed:
            parts = {each.part for each in self._waiting}
            for busy in self._busy.values():
                if busy.unfinished:
                    parts.add(busy.assignment.part)
            return parts

    def add(self, assignments: Sequence[Assignment]) -> None:
        """Make work available. Without any, wake the engines: a source has closed."""
        with self._changed:
            for each in assignments:
                # an earlier call may have suspected them
                suspects, others = self._suspects(each)
                if others:
                    self._waiting.append(replace(each, shards=others))
                self._put_alone(each, suspects)
            self._leave_out(())
            self._changed.notify_all()

    def abandon(self, failure: Failure) -> None:
        """Give up a checkpoint that cannot be made or used."""
        self.failures.append(failure)
        self.add(())

    def stop(self) -> None:
        """Hand out no more work: the run has failed or was interrupted."""
        with self._changed:
            self.stopped = True
            self._changed.notify_all()

    def join(self, engine: int, host: str = "") -> None:
        """An engine has a process: it may try work that failed on others."""
        with self._changed:
            self.engines.add(engine)
            self.hosts.setdefault(engine, set()).add(host)

    def leave(self, engine: int, *, for_good: bool = False) -> None:
        """An engine has no process, perhaps for good; `for_good`: it receives no
        more work."""
        with self._changed:
            self.engines.discard(engine)
            if for_good:
                self._dismissed.add(engine)
            self._changed.notify_all()

    def take(
        self, engine: int, held: str | None, architecture: str | None
    ) -> Assignment | None:
        """Wait for an engine's next assignment. `held` and `architecture`: its
        checkpoint's `engine_keys`.

        Returns None if there will be no more work. After a long wait, also returns None
        in two cases:

        - New work could come only from other engines' failures. Those engines then do
          it themselves.
        - Prune jobs wait for the engine's GPUs.

        The engine calls `begin` after it has loaded the assignment's checkpoint, and
        `failed` or `end` in any case.
        """
        idle_since = time.monotonic()
        with self._changed:
            while not self.stopped and engine not in self._dismissed:
                assignment = self._nearest(engine, held, architecture)
                assignment = assignment or self._relieve(engine)
                if assignment is not None:
                    unfinished = {shard.name: shard for shard in assignment.shards}
                    self._busy[engine] = _Busy(assignment, unfinished)
                    return assignment
                long = time.monotonic() - idle_since > IDLE_SECONDS
                if self._is_useless(engine, long):
                    return None
                self._changed.wait(timeout=_WAKE_SECONDS)
        return None

    def _is_useless(self, engine: int, long: bool) -> bool:
        """Whether an engine without work should end. `long`: it has waited long."""
        remote = self.remote
        names = [each.checkpoint.name for each in self._waiting]
        held = [busy.assignment.checkpoint.name for busy in self._busy.values()]
        if engine in self.remote_engines:
            names = [name for name in names if name in remote]
            held = [name for name in held if name in remote]
            return not self._open and not names and (long or not held)
        names = [name for name in names if name not in remote]
        if not self._open:
            held = [name for name in held if name not in remote]
            return not names and (long or not held)
        fits = any(self.fits(engine, name) for name in names)
        return long and self.short and not fits

    def upcoming(
        self, engine: int, held: str | None, architecture: str | None
    ) -> CheckpointInfo | None:
        """The waiting checkpoint that an engine with `held` would load next; None
        without one."""
        other = None
        with self._changed:
            for each in self._waiting:
                info = each.checkpoint
                away = distance(info, held, architecture)
                if away and self.fits(engine, info.name):
                    if away == 1:
                        return info
                    other = other or info
        return other

    def loaded(self, engine: int, checkpoint: CheckpointInfo) -> None:
        with self._changed:
            # it was the probe: so the failures were the checkpoints' fault
            if self._remedy(engine) == "probe":
                self.bus.report(Attempt(engine=engine, outcome="sound"))
            self.known = checkpoint

    def begin(self, engine: int, hand_back: HandBack) -> Shards:
        """The shards to evaluate now: the assignment's, without those that other
        engines have taken over."""
        with self._changed:
            busy = self._busy[engine]
            busy.hand_back = hand_back
            return tuple(busy.unfinished.values())

    def doubts(self, engine: int, shard: Shard) -> bool:
        """Whether another engine must confirm that all of a shard's answers fail;
        then the board has it again."""
        with self._changed:
            busy = self._busy[engine]
            assignment, name = busy.assignment, busy.assignment.checkpoint.name
            if assignment.doubted_by is not None:
                self.bus.report(Attempt(checkpoint=name, outcome="alike"))
            believed = attempts.count(self.log, name, "alike")
            if believed or not self._others(engine, name):
                return False
            del busy.unfinished[shard.name]
            again = replace(assignment, shards=(shard,), doubted_by=engine)
            self._waiting.append(again)
            self._changed.notify_all()
            return True

    def finished(
        self, engine: int, shard: Shard, unmeasured: str | None = None
    ) -> None:
        """Record a finished shard. `unmeasured`: the error, if every answer of the
        part so far failed."""
        busy = self._busy[engine]
        part = name, task = busy.assignment.part
        items = len(shard.questions)
        self.bus.report(
            Advanced(engine=engine, checkpoint=name, task=task, items=items)
        )
        with self._changed:
            del busy.unfinished[shard.name]
            if unmeasured is None:
                self.unmeasured.pop(part, None)
            else:
                self.unmeasured[part] = unmeasured
            if busy.unfinished or part in self.unfinished:
                return
            reason = self.unmeasured.get(part)
            if reason is not None:
                failure = Failure(
                    checkpoint=name, stage="evaluate", task=task, reason=reason
                )
                self.failures.append(self._located(failure))
                self._leave_out([part])
            self._changed.notify_all()  # other work may have waited for it

    def end(self, engine: int) -> None:
        """The engine has ended its assignment, or itself ends."""
        with self._changed:
            busy = self._busy.pop(engine, None)
            if busy is not None and busy.unfinished:
                self._waiting.insert(0, busy.rest)
                self._leave_out(())
            self._changed.notify_all()

    def not_started(self, engine: int) -> Remedy:
        """An engine's process ended before its first work."""
        self.bus.report(Attempt(engine=engine, outcome="start"))
        ends = attempts.ends_engine(self.log, engine, self.attempts)
        return "retire" if ends else "go on"

    def failed(self, engine: int, failure: Failure) -> Remedy:
        """Record a failure of the engine's checkpoint, which ends its assignment;
        returns what to do with the engine."""
        with self._changed:
            assignment = self._busy.pop(engine).rest
            name, task = assignment.part
            outcome: Outcome = "load" if failure.stage == "load" else "death"
            shards: Shards = ()
            if failure.mendable:
                outcome = "input"
            elif outcome == "death":
                shards = begun(assignment.shards, IN_FLIGHT[assignment.config.thinks])
            spans = tuple(shard.span for shard in shards)
            self.bus.report(
                Attempt(
                    engine=engine,
                    checkpoint=name,
                    outcome=outcome,
                    task=task,
                    shards=spans,
                )
            )
            others = self._others(engine, name)
            given_up = attempts.is_hopeless(self.log, name, others, self.attempts)
            if outcome != "death":
                self._waiting.append(assignment)
            elif self._examine(assignment, failure):
                given_up = True
            self._waiting = [each for each in self._waiting if each.shards]
            # Another engine may still succeed with this checkpoint.
            holders = [busy.assignment.checkpoint.name for busy in self._busy.values()]
            if given_up and name not in holders:
                self.failures.append(self._located(failure))
                self._leave_out(part for part in self.unfinished if part[0] == name)
            self._changed.notify_all()
            return self._remedy(engine)

    def _examine(self, assignment: Assignment, failure: Failure) -> bool:
        """Put a dead engine's unfinished shards back; returns whether to set the
        checkpoint aside.

        A suspect is tried alone. If it kills again, it is halved, until one item is
        left. Its records get the reason.
        """
        (name, task), given_up = assignment.part, False
        suspects, others = self._suspects(assignment)
        if suspects and not others and len(suspects) == 1:
            (shard,) = suspects
            suspects = halves_of(shard)
            known = self.log, assignment.part, shard.span, self.attempts
            alone = len(suspects) == 1 and attempts.is_guilty(*known)
            if alone and assignment.refusal is None:
                self.bus.report(Attempt(checkpoint=name, outcome="item"))
                given_up = attempts.has_deadly_items(self.log, name)
                item = self.questions[assignment.task_key][shard.questions[0]].item
                lost = replace(
                    failure,
                    stage="item",
                    task=task,
                    language=item.language,
                    item=item.item_id,
                )
                self.failures.append(self._located(lost))
                assignment = replace(assignment, refusal=failure.reason)
        self._waiting.insert(0, replace(assignment, shards=others))
        self._put_alone(assignment, suspects)
        return given_up

    def _suspects(self, assignment: Assignment) -> tuple[Shards, Shards]:
        """The shards to evaluate alone, and the others."""
        suspects = tuple(
            shard
            for shard in assignment.shards
            if attempts.is_suspect(self.log, assignment.part, shard.span, self.attempts)
        )
        others = [shard for shard in assignment.shards if shard not in suspects]
        return suspects, tuple(others)

    def _put_alone(self, assignment: Assignment, suspects: Shards) -> None:
        for shard in suspects:
            self._waiting.append(replace(assignment, shards=(shard,), suspect=True))

    def _remedy(self, engine: int) -> Remedy:
        """What to do with an engine that has just failed."""
        if not attempts.is_doubtful(self.log, engine, self.attempts):
            return "go on"
        return "retire" if self.known is None else "probe"

    def _located(self, failure: Failure) -> Failure:
        return attempts.located(self.log, failure, self.hosts)

    def fits(self, engine: int, checkpoint: str) -> bool:
        """Whether an engine serves a checkpoint's kind: files, or a URL."""
        return (engine in self.remote_engines) == (checkpoint in self.remote)

    def _others(self, engine: int, checkpoint: str) -> set[int]:
        """The other engines that fit a checkpoint."""
        fitting = {each for each in self.engines if self.fits(each, checkpoint)}
        return fitting - {engine}

    def _may_take(self, engine: int) -> Callable[[Assignment], bool]:
        """Whether an engine may try a checkpoint: those that failed with it, and the
        one that doubts it, go last."""
        unfit = attempts.unfit(self.log, self.attempts)

        def may(each: Assignment) -> bool:
            name = each.checkpoint.name
            if not self.fits(engine, name):
                return False
            if engine == each.doubted_by:
                return not self._others(engine, name)
            failed = unfit.get(name, set())
            return engine not in failed or self._others(engine, name) <= failed

        return may

    def _leave_out(self, parts: Iterable[Part]) -> None:
        """Take parts off the board, together with the work that would read their
        answers."""
        self._without |= set(parts)
        while self._without:
            left = [each for each in self._waiting if each.part not in self._without]
            orphans = {each.part: each for each in left if each.after in self._without}
            self._waiting = left
            if not orphans:
                break
            for (name, task), orphan in orphans.items():
                assert orphan.base is not None
                reason = f"its base {orphan.base.name!r} was set aside"
                failure = Failure(
                    checkpoint=name,
                    task=task,
                    stage="evaluate",
                    reason=reason,
                    attempts=0,
                )
                self.failures.append(failure)
            self._without |= orphans.keys()

    def _nearest(
        self, engine: int, held: str | None, architecture: str | None
    ) -> Assignment | None:
        unfinished, may_take = self.unfinished, self._may_take(engine)
        unloadable = attempts.unloadable(self.log)
        # the parts that other work waits for
        awaited = {each.after for each in self._waiting}
        ready = [
            number
            for number, each in enumerate(self._waiting)
            if each.after not in unfinished and may_take(each)
        ]

        def order(number: int) -> tuple[bool, bool, int, bool]:
            each = self._waiting[number]
            away = distance(each.checkpoint, held, architecture)
            return (
                each.suspect,
                each.checkpoint.name in unloadable,
                away,
                each.part not in awaited,
            )

        return self._waiting.pop(min(ready, key=order)) if ready else None

    def _relieve(self, engine: int) -> Assignment | None:
        """Take over half of the unfinished shards of another engine that has at
        least two and has not begun them."""
        awaited = {each.after for each in self._waiting}
        may_take = self._may_take(engine)

        def need(busy: _Busy) -> tuple[bool, int]:
            return busy.assignment.part in awaited, len(busy.unfinished)

        for busy in sorted(self._busy.values(), key=need, reverse=True):
            count = len(busy.unfinished) // 2
            if not count or time.monotonic() < busy.ask_after:
                continue
            if not may_take(busy.assignment):
                continue
            if (part := busy.give_back(count)) is not None:
                return part
            busy.ask_after = time.monotonic() + 1.0
        return None
