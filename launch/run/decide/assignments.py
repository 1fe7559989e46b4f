"""What a run hands around: units of work and their results. Plain records; nothing here needs Ray or an engine."""

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
    """Some of a task's questions: the unit that is written, retried and moved."""

    name: str
    questions: tuple[int, ...]  # positions in the task's list


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalJob:
    """One task on one checkpoint."""

    checkpoint: Path
    task_key: str  # identifies questions + config: what tokenised plans are remembered under
    config: EvalConfig
    stamp: Stamp  # without the engine's columns
    # Whose greedy answers its probes read; None: no probe reads any, or the checkpoint is its own base.
    base: BaseSource | None = None
    references: References | None = None  # where its base's distributions are; None: no probe compares any
    refusal: str | None = None  # why the engine is not asked: every request fails with it, as records say then


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Shards of one task on one checkpoint."""

    checkpoint: CheckpointInfo
    task: str
    job: EvalJob
    shards: tuple[Shard, ...]
    suspect: bool = False  # it may have killed an engine: everything else goes first
    doubted_by: int | None = None  # the engine of which every answer to it failed: another one is asked

    @property
    def part(self) -> Part:
        return self.checkpoint.name, self.task

    @property
    def after(self) -> Part | None:
        """What must have all its records before this is begun."""
        base = self.job.base
        return None if base is None or base.name is None else (base.name, self.task)

    @property
    def items(self) -> int:
        return sum(len(shard.questions) for shard in self.shards)


def distance(candidate: CheckpointInfo, held: str | None, architecture: str | None) -> int:
    """How far a checkpoint is for an engine: 0 it holds the weights (of that digest), 1 swapped in place, 2 neither."""
    if candidate.weights_digest == held:
        return 0
    return 1 if architecture is None or candidate.architecture == architecture else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """A finished shard and its records, in the order of its questions, as the file that they become: a hundred engines
    make theirs at once, and the driver writes bytes."""

    shard: Shard
    part: bytes
    failed: str | None  # how every answer failed (`failed_throughout`)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """How the process of an engine is started."""

    config: EngineConfig
    log_path: Path  # where its stdout and stderr go
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where a process runs."""

    node: str  # the host's name
    node_id: str  # Ray's
    device: str  # the GPUs that it was given, or else the processor
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a finished run can say of itself in one line."""

    items: int  # evaluated by this call, over all checkpoints
    seconds: float  # spent evaluating and pruning, start of Ray included
    failures: tuple[Failure, ...] = ()  # what the run could not do


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """What one matcher did in this call."""

    matcher: str
    asked: int  # distinct pairs of an item and a response
    verdicts: int  # current ones, over all checkpoints
    yes: int
    too_long: int  # responses that do not fit the matcher's prompt
    failed: int  # responses on which the engine failed: the same command repeats them
