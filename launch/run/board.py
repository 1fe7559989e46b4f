"""Which engine does what next: the decisions, without Ray. One board serves all engine threads of a driver.

A checkpoint's shards stay on the engine that holds it. An engine without work takes, in this order: more work on the
checkpoint that it holds; a checkpoint of the same architecture (swapped in place); any other one (a new engine); among
equally near ones the bases that others wait for.

A checkpoint with probes that read its base's answers (`Assignment.after`) is not handed out before the base's shards of
that task are finished. When there is nothing that can be begun, an engine takes over shards that another one has not
begun: of those that work on a base that others wait for, or else of all, the busiest. However an engine ends, what it
has not finished goes back on the board.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from evaluator.checkpoints.info import CheckpointInfo
from launch.run.work import Assignment, Part, Shard

GiveUp = Callable[[int], Sequence[Shard]]


@dataclass(slots=True)
class _Busy:
    assignment: Assignment
    unfinished: dict[str, Shard]
    give_up: GiveUp | None = None  # None: still loading, nothing is begun


@dataclass(slots=True)
class Board:
    """Thread-safe. `expect` announces work that will be added later; `take` waits while some is expected."""

    _waiting: list[Assignment] = field(default_factory=list)
    _busy: dict[int, _Busy] = field(default_factory=dict)
    _expected: int = 0
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

    def expect(self, count: int) -> None:
        with self._changed:
            self._expected += count

    def add(self, assignments: Sequence[Assignment], expected: int = 0) -> None:
        """Make work available; this fulfils `expected` of the announced additions."""
        with self._changed:
            self._waiting += [a for a in assignments if a.shards]
            self._expected -= expected
            self._changed.notify_all()

    def stop(self) -> None:
        """No more work is handed out: the run has failed or was interrupted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def take(self, engine: int, held: str | None, architecture: str | None) -> Assignment | None:
        """The next assignment for an engine that holds the weights of digest `held`; None when there will never be one.

        The engine calls `begin` when it has loaded the assignment's checkpoint, and `end` in any case.
        """
        with self._changed:
            while not self._stopped:
                assignment = self._nearest(held, architecture) or self._relieve()
                if assignment is not None:
                    self._busy[engine] = _Busy(assignment, {shard.name: shard for shard in assignment.shards})
                    return assignment
                if not (self._busy or self._expected):
                    return None
                self._changed.wait(timeout=1.0)
        return None

    def upcoming(self, held: str, architecture: str | None) -> CheckpointInfo | None:
        """The waiting checkpoint that an engine that holds `held` would load next; None if none is waiting."""
        with self._changed:
            waiting = [a.checkpoint for a in self._waiting if a.checkpoint.weights_digest != held]
        return min(waiting, key=lambda info: _distance(info, held, architecture), default=None)

    def begin(self, engine: int, give_up: GiveUp) -> tuple[Shard, ...]:
        """The shards to do now: those of the assignment that no other engine has taken over meanwhile."""
        with self._changed:
            busy = self._busy[engine]
            busy.give_up = give_up
            return tuple(busy.unfinished.values())

    def finished(self, engine: int, shard: Shard) -> None:
        with self._changed:
            unfinished = self._busy[engine].unfinished
            del unfinished[shard.name]
            if not unfinished:
                self._changed.notify_all()  # others may have waited for it

    def end(self, engine: int) -> None:
        with self._changed:
            busy = self._busy.pop(engine)
            if busy.unfinished:
                self._waiting.insert(0, replace(busy.assignment, shards=tuple(busy.unfinished.values())))
            self._changed.notify_all()

    def _nearest(self, held: str | None, architecture: str | None) -> Assignment | None:
        unfinished = {each.part for each in self._waiting}
        unfinished |= {busy.assignment.part for busy in self._busy.values() if busy.unfinished}
        awaited = self._awaited()
        ready = [number for number, each in enumerate(self._waiting) if each.after not in unfinished]
        if not ready:
            return None

        def order(number: int) -> tuple[int, bool]:
            each = self._waiting[number]
            return _distance(each.checkpoint, held, architecture), each.part not in awaited

        return self._waiting.pop(min(ready, key=order))

    def _awaited(self) -> set[Part]:
        """What must be finished before something that waits can be begun."""
        return {each.after for each in self._waiting if each.after is not None}

    def _relieve(self) -> Assignment | None:
        """Half of what an engine has left, if that is at least two shards."""
        awaited = self._awaited()
        order = sorted(
            self._busy.values(),
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
        return replace(busiest.assignment, shards=tuple(shards)) if shards else None


def _distance(candidate: CheckpointInfo, held: str | None, architecture: str | None) -> int:
    if candidate.weights_digest == held:
        return 0
    return 1 if architecture is None or candidate.architecture == architecture else 2
