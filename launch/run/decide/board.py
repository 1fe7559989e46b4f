"""Which engine does what next: the decisions, without Ray. One board serves all engine threads of a driver.

A checkpoint's shards stay on the engine that holds it. An engine without work takes, in this order: more work on the
checkpoint that it holds; a checkpoint of the same architecture (swapped in place); any other one (a new engine); among
equally near ones the bases that others wait for. What has failed comes after everything else.

A checkpoint with probes that read its base's answers (`Assignment.after`) is not handed out before the base's shards of
that task are finished. When there is nothing that can be begun, an engine takes over shards that another one has not
begun: of those that work on a base that others wait for, or else of all, the busiest. However an engine ends, what it
has not finished goes back on the board.

What a failure means is the ledger's to say (`failures.py`). A checkpoint that is set aside leaves the board; with it
goes what would have read its answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.probes.stream import IN_FLIGHT
from evaluator.store.failures import Stage
from launch.run.decide.assignments import Assignment, Part, Shard, distance
from launch.run.decide.failures import Ledger, Remedy, Setback, Trouble
from launch.run.decide.shards import begun

IDLE_SECONDS = 60.0  # for which an engine is kept that has nothing to do
GiveUp = Callable[[int], Sequence[Shard]]


@dataclass(slots=True)
class _Busy:
    assignment: Assignment
    unfinished: dict[str, Shard]
    give_up: GiveUp | None = None  # None: still loading, nothing is begun
    ask_after: float = 0.0  # it has just had nothing to give: a hundred idle engines would ask it all the time


@dataclass(slots=True)
class Board:
    """Thread-safe. `expect` announces work that will be added later; `take` waits while some is expected."""

    _ledger: Ledger = field(default_factory=Ledger)
    _waiting: list[Assignment] = field(default_factory=list)
    _busy: dict[int, _Busy] = field(default_factory=dict)
    _setbacks: list[Setback] = field(default_factory=list)
    _without: set[Part] = field(default_factory=set)  # parts that will not get all their records
    _believed: set[str] = field(default_factory=set)  # checkpoints whose answers failed on two engines alike
    _unmeasured: dict[Part, str] = field(default_factory=dict)  # parts in which every answer so far failed, and how
    _expected: int = 0
    _short: bool = False  # others wait for what engines hold
    _dismissed: set[int] = field(default_factory=set)  # engines that are given nothing more
    _stopped: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def has_work(self) -> bool:
        with self._changed:
            return bool(self._waiting)

    @property
    def stopped(self) -> bool:
        with self._changed:
            return self._stopped

    @property
    def over(self) -> bool:
        """Whether no work is left that an engine could ever take."""
        with self._changed:
            return self._stopped or not (self._waiting or self._busy or self._expected)

    @property
    def lacks(self) -> str | None:
        """The type of device that all work waits for that is left, while none of the engines that are there has it."""
        with self._changed:
            if self._stopped or self._busy or self._expected:
                return None
            devices, names = self._ledger.devices, [each.checkpoint.name for each in self._waiting]
            return devices.wanted(names[0]) if names and all(map(devices.lacks, names)) else None

    @property
    def setbacks(self) -> tuple[Setback, ...]:
        """What was given up so far."""
        with self._changed:
            return tuple(self._setbacks)

    @property
    def known(self) -> CheckpointInfo | None:
        """A checkpoint that is known to load."""
        with self._changed:
            return self._ledger.known

    def expect(self, count: int) -> None:
        with self._changed:
            self._expected += count

    def bind(self, checkpoint: str, family: str, devices: Iterable[str]) -> None:
        """A checkpoint is to be computed on the same type of device as all of its family; `devices`: of its records.

        Raises InputError where there are records of several.
        """
        with self._changed:
            self._ledger.devices.belong(checkpoint, family)
            for device in sorted(devices):
                self._ledger.devices.bind(checkpoint, device)

    def add(self, assignments: Sequence[Assignment], expected: int = 0) -> None:
        """Make work available; this fulfils `expected` of the announced additions."""
        with self._changed:
            self._waiting += [a for a in assignments if a.shards]
            self._expected -= expected
            self._leave_out(())
            self._changed.notify_all()

    def short(self, short: bool) -> None:
        """Whether prune jobs wait for the GPUs that engines hold."""
        with self._changed:
            if short != self._short:
                self._short = short
                self._changed.notify_all()

    def stop(self) -> None:
        """No more work is handed out: the run has failed or was interrupted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, engine: int, device: str = "") -> None:
        """An engine has a process: what others fail with may be tried on it."""
        with self._changed:
            self._ledger.devices.join(engine, device)

    def leave(self, engine: int, *, for_good: bool = False) -> None:
        """An engine has no process, and may never have one again; `for_good`: it is given nothing more."""
        with self._changed:
            self._ledger.devices.leave(engine)
            self._dismissed |= {engine} if for_good else set()
            self._changed.notify_all()

    def take(self, engine: int, held: str | None, architecture: str | None) -> Assignment | None:
        """The next assignment for an engine that holds the weights of digest `held`; None when there will never be one.

        None, too, for an engine that has waited for long: where work comes only if others fail, who then go on
        themselves, and where prune jobs wait for its GPUs.
        The engine calls `begin` when it has loaded the assignment's checkpoint, and `failed` or `end` in any case.
        """
        with self._changed:
            idle_since = time.monotonic()
            while not self._stopped and engine not in self._dismissed:
                assignment = self._nearest(engine, held, architecture) or self._relieve(engine)
                if assignment is not None:
                    self._ledger.devices.begin(engine, assignment.checkpoint.name)
                    self._busy[engine] = _Busy(assignment, {shard.name: shard for shard in assignment.shards})
                    return assignment
                long = time.monotonic() - idle_since > IDLE_SECONDS
                if self._expected:
                    useless = long and self._short and not any(self._fits(engine, each) for each in self._waiting)
                else:
                    useless = not self._waiting and (long or not self._busy)
                if useless:
                    return None
                self._changed.wait(timeout=1.0)
        return None

    def upcoming(self, engine: int, held: str, architecture: str | None) -> CheckpointInfo | None:
        """The waiting checkpoint that an engine that holds `held` would load next; None if none is waiting."""
        other, fits = None, self._ledger.devices.fits
        with self._changed:
            for each in self._waiting:
                away = distance(each.checkpoint, held, architecture)
                if not away or not fits(engine, each.checkpoint.name):
                    continue
                if away == 1:
                    return each.checkpoint
                other = other or each.checkpoint
        return other

    def loaded(self, engine: int, checkpoint: CheckpointInfo) -> None:
        with self._changed:
            self._ledger.loaded(engine, checkpoint)

    def begin(self, engine: int, give_up: GiveUp) -> tuple[Shard, ...]:
        """The shards to do now: those of the assignment that no other engine has taken over meanwhile."""
        with self._changed:
            busy = self._busy[engine]
            busy.give_up = give_up
            return tuple(busy.unfinished.values())

    def finished(self, engine: int, shard: Shard, unmeasured: str | None = None) -> None:
        """`unmeasured`: how every answer of this shard failed, and all others of the part that are stored."""
        with self._changed:
            busy = self._busy[engine]
            part = busy.assignment.part
            del busy.unfinished[shard.name]
            self._ledger.went_well(engine, part[0])
            self._ledger.devices.record(part[0])
            if unmeasured is None:
                self._unmeasured.pop(part, None)
            else:
                self._unmeasured[part] = unmeasured
            if not busy.unfinished and part not in self.unfinished:
                if part in self._unmeasured:
                    reason = self._unmeasured[part]
                    self._set_back(Setback(checkpoint=part[0], task=part[1], stage="evaluate", reason=reason))
                    self._leave_out([part])
                self._changed.notify_all()  # others may have waited for it

    def unmeasured(self, part: Part) -> bool:
        """Whether every answer of a part has failed so far, as `finished` was told."""
        with self._changed:
            return part in self._unmeasured

    def doubts(self, engine: int, shard: Shard) -> bool:
        """Whether another engine is to say the same before it is believed that every answer of a shard fails.

        The shard is then back on the board.
        """
        with self._changed:
            busy = self._busy[engine]
            assignment = busy.assignment
            if assignment.doubted_by is not None:
                self._believed.add(assignment.checkpoint.name)
            if assignment.checkpoint.name in self._believed or not self._others(engine, assignment):
                return False
            del busy.unfinished[shard.name]
            self._waiting.append(replace(assignment, shards=(shard,), doubted_by=engine))
            self._changed.notify_all()
            return True

    def end(self, engine: int) -> None:
        """The engine is done with its assignment, or with itself."""
        with self._changed:
            busy = self._busy.pop(engine, None)
            self._ledger.devices.end(engine)
            if busy is not None and busy.unfinished:
                self._waiting.insert(0, replace(busy.assignment, shards=tuple(busy.unfinished.values())))
                self._leave_out(())
            self._changed.notify_all()

    def failed(self, engine: int, trouble: Trouble) -> Remedy:
        """The engine has failed with its assignment, which ends it; what becomes of the engine."""
        with self._changed:
            busy = self._busy.pop(engine)
            assignment, left = busy.assignment, tuple(busy.unfinished.values())
            name = assignment.checkpoint.name
            given_up = self._ledger.failed(engine, name, trouble)
            self._ledger.devices.end(engine)
            if trouble.stage == "load" or trouble.mendable:
                self._waiting.append(replace(assignment, shards=left))
            else:
                given_up = self._examine(assignment, left, trouble) or given_up
            self._waiting = [each for each in self._waiting if each.shards]
            # What another engine is at with this checkpoint may go well.
            if given_up and not any(busy.assignment.checkpoint.name == name for busy in self._busy.values()):
                stage, reason, mendable = trouble.stage, trouble.reason, trouble.mendable
                self._set_back(Setback(checkpoint=name, stage=stage, reason=reason, mendable=mendable))
                self._leave_out(part for part in self.unfinished if part[0] == name)
            self._changed.notify_all()
            return self._ledger.remedy(engine)

    def not_started(self, engine: int) -> Remedy:
        """The engine's process ended before it was given anything; what becomes of the engine."""
        with self._changed:
            return self._ledger.not_started(engine)

    def proved(self, engine: int) -> None:
        """The engine has loaded the `known` checkpoint."""
        with self._changed:
            self._ledger.proved(engine)

    def abandon(
        self, checkpoint: str, reason: str, *, attempts: int, mendable: bool, expected: int, stage: Stage = "prune"
    ) -> None:
        """A checkpoint could not be made, or, at another `stage`, not be used; `expected` as in `add`."""
        with self._changed:
            self._expected -= expected
            self._setbacks.append(
                Setback(checkpoint=checkpoint, stage=stage, reason=reason, attempts=attempts, mendable=mendable)
            )
            self._changed.notify_all()

    def _examine(self, assignment: Assignment, left: tuple[Shard, ...], trouble: Trouble) -> bool:
        """Put back what an engine was busy with when it died. Whether the checkpoint is to be set aside.

        A suspect is tried alone. One that kills again is halved, until one item is left, whose records get the reason.
        """
        part, ledger = assignment.part, self._ledger
        ledger.suspect(part, begun(left, IN_FLIGHT))
        suspects = tuple(shard for shard in left if ledger.suspicion(part, shard) >= ledger.patience)
        rest = tuple(shard for shard in left if shard not in suspects)
        if rest:
            self._waiting.insert(0, replace(assignment, shards=rest))
        job, given_up = assignment.job, False
        guilty = ledger.guilty(part, left, suspects) if job.refusal is None else "unknown"
        if guilty == "a shard":
            suspects = ledger.halve(part, suspects[0])
        if guilty == "an item":
            job, given_up = replace(job, refusal=trouble.reason), ledger.lost_item(part[0])
            item = Setback(checkpoint=part[0], task=part[1], stage="item", reason=trouble.reason)
            self._set_back(replace(item, question=suspects[0].questions[0]))
        self._waiting += [replace(assignment, job=job, shards=(each,), suspect=True) for each in suspects]
        return given_up

    def _set_back(self, setback: Setback) -> None:
        """Note what was given up, with what the ledger knows of its failures."""
        name, ledger = setback.checkpoint, self._ledger
        engines, attempts = ledger.engines_of(name), max(1, ledger.failures_of(name))
        self._setbacks.append(replace(setback, engines=engines, attempts=attempts))

    def _leave_out(self, parts: Iterable[Part]) -> None:
        """Take parts off the board, and with them what would read their answers."""
        self._without |= set(parts)
        while orphans := [each for each in self._waiting if each.after in self._without]:
            for each in orphans:
                if each.part not in self._without and each.after is not None:
                    reason = f"its base {each.after[0]!r} was set aside"
                    name, task = each.part
                    lost = Setback(checkpoint=name, task=task, stage="evaluate", reason=reason, attempts=0)
                    self._setbacks.append(lost)
            self._without |= {each.part for each in orphans}
            self._waiting = [each for each in self._waiting if each.part not in self._without]
        self._waiting = [each for each in self._waiting if each.part not in self._without]

    def _nearest(self, engine: int, held: str | None, architecture: str | None) -> Assignment | None:
        unfinished = self.unfinished
        awaited = self._awaited()
        ready = [
            number
            for number, each in enumerate(self._waiting)
            if each.after not in unfinished and self._may_take(engine, each)
        ]
        if not ready:
            return None

        def order(number: int) -> tuple[bool, bool, int, bool]:
            each = self._waiting[number]
            doubtful = self._ledger.doubtful(each.checkpoint.name)
            away = distance(each.checkpoint, held, architecture)
            return each.suspect, doubtful, away, each.part not in awaited

        return self._waiting.pop(min(ready, key=order))

    def _may_take(self, engine: int, each: Assignment) -> bool:
        if each.doubted_by == engine and self._others(engine, each):
            return False
        return self._ledger.may_take(engine, each.checkpoint.name)

    def _fits(self, engine: int, each: Assignment) -> bool:
        return self._ledger.devices.fits(engine, each.checkpoint.name)

    def _others(self, engine: int, each: Assignment) -> set[int]:
        return self._ledger.devices.others(engine, each.checkpoint.name)

    @property
    def unfinished(self) -> set[Part]:
        """What is on the board and does not have all its records yet."""
        with self._changed:
            unfinished = {each.part for each in self._waiting}
            return unfinished | {busy.assignment.part for busy in self._busy.values() if busy.unfinished}

    def _awaited(self) -> set[Part]:
        """What must be finished before something that waits can be begun."""
        return {each.after for each in self._waiting if each.after is not None}

    def _relieve(self, engine: int) -> Assignment | None:
        """Half of what an engine has left, if that is at least two shards."""
        awaited = self._awaited()
        order = sorted(
            (
                busy
                for busy in self._busy.values()
                if len(busy.unfinished) > 1
                and time.monotonic() >= busy.ask_after
                and self._may_take(engine, busy.assignment)
            ),
            key=lambda busy: (busy.assignment.part in awaited, len(busy.unfinished)),
            reverse=True,
        )
        for busy in order:
            taken = self._take_over(busy, len(busy.unfinished) // 2)
            if taken is not None:
                return taken
        return None

    @staticmethod
    def _take_over(busiest: _Busy, count: int) -> Assignment | None:
        """Up to `count` shards that an engine has not begun."""
        if not count:
            return None
        shards = tuple(busiest.unfinished.values())[-count:] if busiest.give_up is None else busiest.give_up(count)
        for shard in shards:
            del busiest.unfinished[shard.name]
        busiest.ask_after = 0.0 if shards else time.monotonic() + 1.0
        return replace(busiest.assignment, shards=tuple(shards)) if shards else None
