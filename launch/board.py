"""Which engine does what next: the decisions, without Ray. One board serves all engine threads of a driver.

A checkpoint's shards stay on the engine that holds it. An engine without work takes, in this order: more work on the
checkpoint that it holds; a checkpoint of the same architecture (swapped in place); any other one (a new engine). Only
when nothing is left or to come does it relieve the engine with the most work of shards which that one has not begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from evaluator.checkpoint import CheckpointInfo
from launch.actors import EvalJob, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Shards of one task on one checkpoint."""

    checkpoint: CheckpointInfo
    task: str
    job: EvalJob
    shards: tuple[Shard, ...]


GiveUp = Callable[[int], Sequence[Shard]]


@dataclass(slots=True)
class _Busy:
    assignment: Assignment
    remaining: int
    give_up: GiveUp


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

    def expect(self, count: int) -> None:
        with self._changed:
            self._expected += count

    def add(self, assignments: Sequence[Assignment], expected: int = 0) -> None:
        """Make work available; `expected` of the announced additions are hereby fulfilled."""
        with self._changed:
            self._waiting += [a for a in assignments if a.shards]
            self._expected -= expected
            self._changed.notify_all()

    def stop(self) -> None:
        """No more work is handed out: the run has failed or was interrupted."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def take(self, engine: int, checkpoint: str | None, architecture: str | None) -> Assignment | None:
        """The next assignment for an engine that holds `checkpoint`; None when there will never be one."""
        with self._changed:
            while not self._stopped:
                if self._waiting:
                    best = min(
                        range(len(self._waiting)),
                        key=lambda i: _distance(self._waiting[i].checkpoint, checkpoint, architecture),
                    )
                    return self._waiting.pop(best)
                if not self._expected and not self._busy:
                    return None
                if not self._expected and (relieved := self._relieve()) is not None:
                    return relieved
                self._changed.wait(timeout=1.0)
        return None

    def begin(self, engine: int, assignment: Assignment, give_up: GiveUp) -> None:
        with self._changed:
            self._busy[engine] = _Busy(assignment, len(assignment.shards), give_up)

    def finished_shard(self, engine: int) -> None:
        with self._changed:
            self._busy[engine].remaining -= 1

    def end(self, engine: int) -> None:
        with self._changed:
            self._busy.pop(engine, None)
            self._changed.notify_all()

    def _relieve(self) -> Assignment | None:
        """Half of what the busiest engine has left, if that is at least two shards."""
        busiest = max(self._busy.values(), key=lambda busy: busy.remaining)
        if busiest.remaining < 2:
            return None
        shards = tuple(busiest.give_up(busiest.remaining // 2))
        busiest.remaining -= len(shards)
        return replace(busiest.assignment, shards=shards) if shards else None


def _distance(candidate: CheckpointInfo, checkpoint: str | None, architecture: str | None) -> int:
    if candidate.weights_digest == checkpoint:
        return 0
    return 1 if architecture is None or candidate.architecture == architecture else 2
