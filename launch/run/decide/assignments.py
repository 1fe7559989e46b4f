"""Units of work in a run, and their results: plain records, without Ray or an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.engine.config import EngineConfig
from evaluator.probes.base import References
from evaluator.probes.config import EvalConfig
from evaluator.probes.recording import Stamp
from evaluator.store.failures import Failure
from launch.run.decide.base_answers import BaseSource
from launch.run.decide.nodes import Place

Part = tuple[str, str]  # checkpoint, task


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Some questions of a task: the unit that is written, retried and moved."""

    name: str
    questions: tuple[int, ...]  # positions in the task's list


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """One task on one checkpoint."""

    checkpoint: Path
    task_key: str  # identifies questions + config: the key for tokenised plans
    config: EvalConfig
    stamp: Stamp  # without the engine's columns
    # The source of the greedy answers that its probes read; None: no probe reads any, or it is its own base.
    base: BaseSource | None = None
    references: References | None = None  # the distributions of its base; None: no probe compares any
    refusal: str | None = None  # the error of every request, without the engine; the records contain it


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Shards of one task on one checkpoint."""

    checkpoint: CheckpointInfo
    task: str
    job: EvalJob
    shards: tuple[Shard, ...]
    suspect: bool = False  # it may have killed an engine: all other work goes first
    doubted_by: int | None = None  # the engine on which every answer failed: another engine tries

    @property
    def part(self) -> Part:
        return self.checkpoint.name, self.task

    @property
    def after(self) -> Part | None:
        """The part that must have all its records before this one begins."""
        base = self.job.base
        return None if base is None or base.name is None else (base.name, self.task)

    @property
    def items(self) -> int:
        return sum(len(shard.questions) for shard in self.shards)


def distance(candidate: CheckpointInfo, held: str | None, architecture: str | None) -> int:
    """The effort for an engine to serve a checkpoint: 0 same weights (digest `held`), 1 swapped in place, 2 neither."""
    if candidate.weights_digest == held:
        return 0
    return 1 if architecture is None or candidate.architecture == architecture else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A finished shard and its records, in the order of its questions, as the bytes of their file.

    Each engine makes its own bytes, so with a hundred engines the driver only writes.
    """

    shard: Shard
    part: bytes
    failed: str | None  # the error, if every answer failed (`failed_throughout`)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """The settings for starting an engine's process."""

    config: EngineConfig
    log_path: Path  # receives its stdout and stderr
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The node and device of a process."""

    node: str  # the host's name
    node_id: str  # Ray's
    device: str  # its GPUs, or else the processor
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a finished run, for one line of output."""

    items: int  # evaluated by this call, over all checkpoints
    seconds: float  # spent evaluating and pruning, start of Ray included
    failures: tuple[Failure, ...] = ()  # work that the run gave up


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The result of one matcher in this call."""

    matcher: str
    asked: int  # distinct pairs of an item and a response
    verdicts: int  # current ones, over all checkpoints
    yes: int
    too_long: int  # responses that do not fit the matcher's prompt
    failed: int  # responses on which the engine failed: the same command repeats them
