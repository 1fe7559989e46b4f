"""Which engine does what next: the decisions, without Ray. One board serves all engine threads of a driver.

A checkpoint's shards stay on the engine that holds it. An engine without work takes, in this order: more work on the
checkpoint that it holds; a checkpoint of the same architecture (swapped in place); any other one (a new engine). When
nothing is left and nothing will come, it takes over shards that the busiest engine has not begun. However an engine
ends, what it has not finished goes back on the board.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from evaluator.checkpoints.info import CheckpointInfo
from launch.run.work import Assignment, Shard

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
                assignment = self._nearest(held, architecture)
                if assignment is None and not self._expected:
                    if not self._busy:
                        return None
                    assignment = self._relieve()
                if assignment is not None:
                    self._busy[engine] = _Busy(assignment, {shard.name: shard for shard in assignment.shards})
                    return assignment
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
            del self._busy[engine].unfinished[shard.name]

    def end(self, engine: int) -> None:
        with self._changed:
            busy = self._busy.pop(engine)
            if busy.unfinished:
                self._waiting.insert(0, replace(busy.assignment, shards=tuple(busy.unfinished.values())))
            self._changed.notify_all()

    def _nearest(self, held: str | None, architecture: str | None) -> Assignment | None:
        if not self._waiting:
            return None
        distances = [_distance(assignment.checkpoint, held, architecture) for assignment in self._waiting]
        return self._waiting.pop(distances.index(min(distances)))

    def _relieve(self) -> Assignment | None:
        """Half of what the busiest engine has left, if that is at least two shards."""
        busiest = max(self._busy.values(), key=lambda busy: len(busy.unfinished))
        count = len(busiest.unfinished) // 2
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
