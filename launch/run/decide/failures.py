"""Decides what follows from a failure, from counts alone: no Ray, clocks or threads (the board holds the lock).

Failed work is tried again, first on an engine that has not failed with it. Either the checkpoint or the engine can be
at fault. Counts decide which:

- A checkpoint that fails `attempts` times in a row is set aside.
- An engine that fails with `attempts` different checkpoints in a row must load one that has loaded before. If it
  cannot, it is retired.

An engine that dies has many items in flight. All shards that may have killed it become suspects. A shard that is
suspected often enough is evaluated alone. If it kills again, it is halved, until one item is left. That item's records
get `engine_error`, and all other work continues.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.store.failures import Stage
from launch.run.decide.assignments import Part, Shard
from launch.run.decide.devices import Devices
from launch.run.decide.shards import halved

Remedy = Literal["go on", "probe", "retire"]  # for an engine after a failure
Guilty = Literal["unknown", "a shard", "an item"]

_MORE_DEATHS = 3  # more deaths than attempts, in a row, before a checkpoint is set aside: halving needs some
_DEADLY_ITEMS = 8  # limit for one checkpoint: each costs several engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The report of an engine's worker on a failure."""

    stage: Literal["load", "evaluate"]
    reason: str  # one line
    mendable: bool = False  # the input is at fault: the same engine would fail again


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """Work that was given up: a checkpoint, one of its tasks, or one question."""

    checkpoint: str
    stage: Stage
    reason: str
    task: str = ""
    question: int | None = None  # its position in the task
    engines: tuple[int, ...] = ()
    attempts: int = 1
    mendable: bool = False


@dataclass(slots=True)
class Ledger:
    """The counts, and the decisions from them."""

    attempts: int = 3
    known: CheckpointInfo | None = None  # a checkpoint that has loaded
    devices: Devices = field(default_factory=Devices)
    _row: Counter[str] = field(default_factory=Counter)  # failures of a checkpoint in a row
    _not_loaded: set[str] = field(default_factory=set)
    _lost_items: Counter[str] = field(default_factory=Counter)
    _failed_on: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # in that row
    _between: Counter[tuple[str, int]] = field(default_factory=Counter)  # failures in a row, by checkpoint and engine
    _suspected: Counter[tuple[Part, str]] = field(default_factory=Counter)  # deaths in which a shard was in flight
    _streak: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _starts: Counter[int] = field(default_factory=Counter)  # failures of an engine's process to start, in a row

    @property
    def patience(self) -> int:
        """The number of deaths after which a suspected shard is evaluated alone, or halved."""
        return max(1, self.attempts - 1)

    def may_take(self, engine: int, checkpoint: str) -> bool:
        """Whether an engine may try a checkpoint. After a failure, engines that have not failed with it go first."""
        if not self.devices.fits(engine, checkpoint):
            return False
        return not self._unfit(engine, checkpoint) or all(
            self._unfit(other, checkpoint) for other in self.devices.others(engine, checkpoint)
        )

    def _unfit(self, engine: int, checkpoint: str) -> bool:
        return engine in self._failed_on[checkpoint] or self._between[checkpoint, engine] >= self.attempts

    def doubtful(self, checkpoint: str) -> bool:
        """Whether a checkpoint failed to load and has finished no shard since: others go first."""
        return checkpoint in self._not_loaded

    def engines_of(self, checkpoint: str) -> tuple[int, ...]:
        """The engines on which a checkpoint has failed."""
        return tuple(
            sorted({engine for (name, engine), count in self._between.items() if name == checkpoint and count})
        )

    def failures_of(self, checkpoint: str) -> int:
        """The number of a checkpoint's failures in a row."""
        return self._row[checkpoint]

    def failed(self, engine: int, checkpoint: str, trouble: Trouble) -> bool:
        """Count a failure; returns whether to set the checkpoint aside."""
        self._row[checkpoint] += 1
        self._failed_on[checkpoint].add(engine)
        self._between[checkpoint, engine] += 1
        self._streak[engine].add(checkpoint)
        tries = self._row[checkpoint]
        if trouble.mendable:  # another engine may be on another machine
            return tries >= 2 or not (self.devices.others(engine, checkpoint) - self._failed_on[checkpoint])
        if trouble.stage == "load":
            self._not_loaded.add(checkpoint)
            return tries >= self.attempts
        return tries >= self.attempts + _MORE_DEATHS

    def not_started(self, engine: int) -> Remedy:
        """An engine's process ended before its first work."""
        self._starts[engine] += 1
        return "retire" if self._starts[engine] >= self.attempts else "go on"

    def remedy(self, engine: int) -> Remedy:
        """Decide what to do with an engine that has just failed."""
        if len(self._streak[engine]) < max(2, self.attempts):
            return "go on"
        return "retire" if self.known is None else "probe"

    def loaded(self, engine: int, checkpoint: CheckpointInfo) -> None:
        """A checkpoint was loaded. It may still fail in the evaluation."""
        self.known = checkpoint
        self._starts[engine] = 0

    def proved(self, engine: int) -> None:
        """An engine has loaded the known checkpoint again, so its failures were the checkpoints' fault."""
        self._streak[engine].clear()

    def went_well(self, engine: int, checkpoint: str) -> None:
        """A shard was finished."""
        self._row[checkpoint] = 0
        self._not_loaded.discard(checkpoint)
        self._failed_on.pop(checkpoint, None)
        self._between[checkpoint, engine] = 0
        self._streak[engine].clear()

    def suspicion(self, part: Part, shard: Shard) -> int:
        return self._suspected[part, shard.name]

    def suspect(self, part: Part, shards: Iterable[Shard]) -> None:
        """Count shards that may have killed an engine."""
        for shard in shards:
            self._suspected[part, shard.name] += 1

    def guilty(self, part: Part, left: Sequence[Shard], suspects: Sequence[Shard]) -> Guilty:
        """The proven cause of a death: the only shard or item that was left; else unknown."""
        if len(left) > 1 or not suspects:
            return "unknown"
        if len(suspects[0].questions) > 1:
            return "a shard"
        return "an item" if self.suspicion(part, suspects[0]) >= self.attempts else "unknown"

    def halve(self, part: Part, shard: Shard) -> tuple[Shard, Shard]:
        """Halve a shard that kills engines. After one more death, the guilty half is halved in turn."""
        halves = halved(shard)
        for half in halves:
            self._suspected[part, half.name] = self.patience - 1
        return halves

    def lost_item(self, checkpoint: str) -> bool:
        """Count an item that kills engines; returns whether it was one too many for the checkpoint."""
        self._lost_items[checkpoint] += 1
        return self._lost_items[checkpoint] >= _DEADLY_ITEMS
