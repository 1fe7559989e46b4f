"""What follows from a failure: decided from counts alone, without Ray, clocks or threads (the board holds the lock).

Whatever fails is tried again, first on an engine that it has not failed on. A failure can be the checkpoint's or the
engine's, and counts tell them apart: a checkpoint that fails `attempts` times in a row is set aside; an engine that
fails with `attempts` different checkpoints in a row has to load one that is known to load, and is retired if it cannot.

An engine that dies has many items in flight. The shards that may have killed it are suspected; one that is suspected
often enough is asked alone, and halved when it kills again, until one item is left. That item's records say
`engine_error`, and everything else goes on.
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

Remedy = Literal["go on", "probe", "retire"]  # what becomes of an engine after a failure
Guilty = Literal["unknown", "a shard", "an item"]

_MORE_DEATHS = 3  # than attempts, in a row, before a checkpoint is set aside: halving needs some
_DEADLY_ITEMS = 8  # of one checkpoint that are looked for, each at the price of several engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What an engine's worker tells of a failure."""

    stage: Literal["load", "evaluate"]
    reason: str  # in plain words, one line
    mendable: bool = False  # the input is at fault: the same engine would say the same again


@dataclass(frozen=True, slots=True, kw_only=True)
class Setback:
    """What was given up: a checkpoint, a task of it, or one question of that."""

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
    """The counts, and what is decided by them."""

    attempts: int = 3
    known: CheckpointInfo | None = None  # a checkpoint that has loaded
    devices: Devices = field(default_factory=Devices)
    _row: Counter[str] = field(default_factory=Counter)  # failures of a checkpoint in a row
    _not_loaded: set[str] = field(default_factory=set)
    _lost_items: Counter[str] = field(default_factory=Counter)
    _failed_on: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))  # in that row
    _between: Counter[tuple[str, int]] = field(default_factory=Counter)  # of a checkpoint on an engine, in a row
    _suspected: Counter[tuple[Part, str]] = field(default_factory=Counter)  # deaths in which a shard was in flight
    _streak: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    _starts: Counter[int] = field(default_factory=Counter)  # failures of an engine's process to start, in a row

    @property
    def patience(self) -> int:
        """Deaths after which a shard is asked alone, or halved."""
        return max(1, self.attempts - 1)

    def may_take(self, engine: int, checkpoint: str) -> bool:
        """Whether an engine may try a checkpoint: not one that it has failed with, while another has not."""
        if not self.devices.fits(engine, checkpoint):
            return False
        return not self._unfit(engine, checkpoint) or all(
            self._unfit(other, checkpoint) for other in self.devices.others(engine, checkpoint)
        )

    def _unfit(self, engine: int, checkpoint: str) -> bool:
        return engine in self._failed_on[checkpoint] or self._between[checkpoint, engine] >= self.attempts

    def doubtful(self, checkpoint: str) -> bool:
        """Whether a checkpoint could not be loaded, and has not done anything since: others go first."""
        return checkpoint in self._not_loaded

    def engines_of(self, checkpoint: str) -> tuple[int, ...]:
        """Those that a checkpoint has failed on."""
        return tuple(
            sorted({engine for (name, engine), count in self._between.items() if name == checkpoint and count})
        )

    def failures_of(self, checkpoint: str) -> int:
        """How often in a row it has failed."""
        return self._row[checkpoint]

    def failed(self, engine: int, checkpoint: str, trouble: Trouble) -> bool:
        """Count a failure; whether the checkpoint is to be set aside."""
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
        """An engine's process ended before it was given anything."""
        self._starts[engine] += 1
        return "retire" if self._starts[engine] >= self.attempts else "go on"

    def remedy(self, engine: int) -> Remedy:
        """What becomes of an engine that has just failed."""
        if len(self._streak[engine]) < max(2, self.attempts):
            return "go on"
        return "retire" if self.known is None else "probe"

    def loaded(self, engine: int, checkpoint: CheckpointInfo) -> None:
        """A checkpoint was loaded. Whether it can be asked anything is seen later."""
        self.known = checkpoint
        self._starts[engine] = 0

    def proved(self, engine: int) -> None:
        """An engine has loaded what is known to load: its failures were the checkpoints'."""
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
        """These may have killed an engine."""
        for shard in shards:
            self._suspected[part, shard.name] += 1

    def guilty(self, part: Part, left: Sequence[Shard], suspects: Sequence[Shard]) -> Guilty:
        """What certainly killed an engine that had these shards left: only what it was alone with."""
        if len(left) > 1 or not suspects:
            return "unknown"
        if len(suspects[0].questions) > 1:
            return "a shard"
        return "an item" if self.suspicion(part, suspects[0]) >= self.attempts else "unknown"

    def halve(self, part: Part, shard: Shard) -> tuple[Shard, Shard]:
        """A shard that kills, in two; one more death, and a half is halved in turn."""
        halves = halved(shard)
        for half in halves:
            self._suspected[part, half.name] = self.patience - 1
        return halves

    def lost_item(self, checkpoint: str) -> bool:
        """An item was found that kills engines; whether there are so many that the checkpoint is to be set aside."""
        self._lost_items[checkpoint] += 1
        return self._lost_items[checkpoint] >= _DEADLY_ITEMS
