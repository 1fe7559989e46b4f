"""Decides which engine does which work, without Ray. All engine threads of a driver share one board.

A checkpoint's shards stay on the engine that has loaded it. A free engine first takes more work on its checkpoint, then
a checkpoint of the same architecture (swapped in place), then any other (a new engine).
Among equals, bases that other checkpoints wait for come first. Work that has failed comes last.

Some probes read the base's answers (`Assignment.after`). Their work waits until the base's shards of that task are
finished. If no work is ready, a free engine takes over shards that another engine has not begun. It takes them from the
busiest engine, but first from engines on an awaited base. The unfinished work of an ended engine returns to the board.

The ledger decides what follows from a failure (`failures.py`). A checkpoint that is set aside leaves the board,
together with the work that needs its answers.
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

IDLE_SECONDS = 60.0  # an engine without work is kept this long
GiveUp = Callable[[int], Sequence[Shard]]


@dataclass(slots=True)
class _Busy:
    assignment: Assignment
    unfinished: dict[str, Shard]
    give_up: GiveUp | None = None  # None: still loading, no shard is begun
    ask_after: float = 0.0  # when to request shards again: it just had none to give, and a hundred engines may be idle


@dataclass(slots=True)
class Board:
    """Thread-safe. `expect` announces work that will be added later; `take` waits while some is expected."""

    _ledger: Ledger = field(default_factory=Ledger)
    _waiting: list[Assignment] = field(default_factory=list)
    _busy: dict[int, _Busy] = field(default_factory=dict)
    _setbacks: list[Setback] = field(default_factory=list)
    _without: set[Part] = field(default_factory=set)  # parts that will not get all their records
    _believed: set[str] = field(default_factory=set)  # checkpoints whose answers failed on two engines alike
    _unmeasured: dict[Part, str] = field(default_factory=dict)  # the error of parts in which every answer failed
    _expected: int = 0
    _short: bool = False  # prune jobs wait for GPUs that engines hold
    _dismissed: set[int] = field(default_factory=set)  # engines that receive no more work
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
        """Whether there is no more work for any engine, now or later."""
        with self._changed:
            return self._stopped or not (self._waiting or self._busy or self._expected)

    @property
    def lacks(self) -> str | None:
        """The type of device that all remaining work needs, if no present engine has it."""
        with self._changed:
            if self._stopped or self._busy or self._expected:
                return None
            devices, names = self._ledger.devices, [each.checkpoint.name for each in self._waiting]
            return devices.wanted(names[0]) if names and all(map(devices.lacks, names)) else None

    @property
    def setbacks(self) -> tuple[Setback, ...]:
        """The setbacks so far."""
        with self._changed:
            return tuple(self._setbacks)

    @property
    def known(self) -> CheckpointInfo | None:
        """A checkpoint that has loaded before."""
        with self._changed:
            return self._ledger.known

    def expect(self, count: int) -> None:
        with self._changed:
            self._expected += count

    def bind(self, checkpoint: str, family: str, devices: Iterable[str]) -> None:
        """Evaluate a checkpoint on the same type of device as its family; `devices`: those of its records.

        Raises InputError if there are records from several types.
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
        """Record whether prune jobs wait for GPUs that engines hold."""
        with self._changed:
            if short != self._short:
                self._short = short
                self._changed.notify_all()

    def stop(self) -> None:
        """Hand out no more work: the run has failed or was interrupted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, engine: int, device: str = "") -> None:
        """An engine has a process: it may try work that failed on others."""
        with self._changed:
            self._ledger.devices.join(engine, device)

    def leave(self, engine: int, *, for_good: bool = False) -> None:
        """An engine has no process, perhaps for good; `for_good`: it receives no more work."""
        with self._changed:
            self._ledger.devices.leave(engine)
            self._dismissed |= {engine} if for_good else set()
            self._changed.notify_all()

    def take(self, engine: int, held: str | None, architecture: str | None) -> Assignment | None:
        """Wait for an engine's next assignment. `held`: the digest of the weights that it has loaded.

        Returns None if there will be no more work. After a long wait, also returns None in two cases:

        - New work could come only from other engines' failures. Those engines then do it themselves.
        - Prune jobs wait for the engine's GPUs.

        The engine calls `begin` after it has loaded the assignment's checkpoint, and `failed` or `end` in any case.
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
        """The waiting checkpoint that an engine with the weights `held` would load next; None without one."""
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
        """The shards to evaluate now: the assignment's, without those that other engines have taken over."""
        with self._changed:
            busy = self._busy[engine]
            busy.give_up = give_up
            return tuple(busy.unfinished.values())

    def finished(self, engine: int, shard: Shard, unmeasured: str | None = None) -> None:
        """Record a finished shard. `unmeasured`: the error, if every answer of the part so far failed."""
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
                self._changed.notify_all()  # other work may have waited for it

    def unmeasured(self, part: Part) -> bool:
        """Whether every answer of a part has failed so far, according to `finished`."""
        with self._changed:
            return part in self._unmeasured

    def doubts(self, engine: int, shard: Shard) -> bool:
        """Whether a second engine must confirm that every answer of a shard fails.

        If so, the shard is back on the board.
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
        """The engine has ended its assignment, or itself ends."""
        with self._changed:
            busy = self._busy.pop(engine, None)
            self._ledger.devices.end(engine)
            if busy is not None and busy.unfinished:
                self._waiting.insert(0, replace(busy.assignment, shards=tuple(busy.unfinished.values())))
                self._leave_out(())
            self._changed.notify_all()

    def failed(self, engine: int, trouble: Trouble) -> Remedy:
        """Record a failure, which ends the engine's assignment; returns what to do with the engine."""
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
            # Another engine may still succeed with this checkpoint.
            if given_up and not any(busy.assignment.checkpoint.name == name for busy in self._busy.values()):
                stage, reason, mendable = trouble.stage, trouble.reason, trouble.mendable
                self._set_back(Setback(checkpoint=name, stage=stage, reason=reason, mendable=mendable))
                self._leave_out(part for part in self.unfinished if part[0] == name)
            self._changed.notify_all()
            return self._ledger.remedy(engine)

    def not_started(self, engine: int) -> Remedy:
        """The engine's process ended before its first work; returns what to do with the engine."""
        with self._changed:
            return self._ledger.not_started(engine)

    def proved(self, engine: int) -> None:
        """The engine has loaded the `known` checkpoint."""
        with self._changed:
            self._ledger.proved(engine)

    def abandon(
        self, checkpoint: str, reason: str, *, attempts: int, mendable: bool, expected: int, stage: Stage = "prune"
    ) -> None:
        """Give up a checkpoint that cannot be made or, at another `stage`, cannot be used; `expected` as in `add`."""
        with self._changed:
            self._expected -= expected
            self._setbacks.append(
                Setback(checkpoint=checkpoint, stage=stage, reason=reason, attempts=attempts, mendable=mendable)
            )
            self._changed.notify_all()

    def _examine(self, assignment: Assignment, left: tuple[Shard, ...], trouble: Trouble) -> bool:
        """Put a dead engine's unfinished shards back; returns whether to set the checkpoint aside.

        A suspect is tried alone. If it kills again, it is halved, until one item is left. Its records get the reason.
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
        """Record a setback, with the ledger's engines and number of failures."""
        name, ledger = setback.checkpoint, self._ledger
        engines, attempts = ledger.engines_of(name), max(1, ledger.failures_of(name))
        self._setbacks.append(replace(setback, engines=engines, attempts=attempts))

    def _leave_out(self, parts: Iterable[Part]) -> None:
        """Take parts off the board, together with the work that would read their answers."""
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
        """The parts on the board that do not have all their records yet."""
        with self._changed:
            unfinished = {each.part for each in self._waiting}
            return unfinished | {busy.assignment.part for busy in self._busy.values() if busy.unfinished}

    def _awaited(self) -> set[Part]:
        """The parts that must be finished before some waiting work can begin."""
        return {each.after for each in self._waiting if each.after is not None}

    def _relieve(self, engine: int) -> Assignment | None:
        """Take over half of another engine's unfinished shards, if it has at least two."""
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
        """Take over up to `count` shards that an engine has not begun."""
        if not count:
            return None
        shards = tuple(busiest.unfinished.values())[-count:] if busiest.give_up is None else busiest.give_up(count)
        for shard in shards:
            del busiest.unfinished[shard.name]
        busiest.ask_after = 0.0 if shards else time.monotonic() + 1.0
        return replace(busiest.assignment, shards=tuple(shards)) if shards else None
