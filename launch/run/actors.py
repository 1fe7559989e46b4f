"""What runs in Ray's processes: one engine per actor, one checkpoint per prune task.

An actor evaluates shards as one stream and yields each as soon as its last item ends. `give_up` takes shards that it
has not begun away again, so that an idle engine can have them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from evaluator.asking.questions import Question
from evaluator.engine.config import EngineConfig, build_engine
from evaluator.probes.config import EvalConfig
from pruning.config import PruneConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from evaluator.engine.base import Engine, EngineStats, LoadReport
    from evaluator.probes.item import ItemPlan
    from evaluator.probes.recording import Stamp

CONTROL = "control"  # the concurrency group of calls that must be answered while a stream is running


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
    stamp: Mapping[str, Any]  # the fields of Stamp that the driver knows


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    shard: Shard
    table: pa.Table


class EngineActor:
    """Owns one engine. The driver starts it with `ray.remote` options that give it its GPU."""

    def __init__(self, config: EngineConfig, log_path: Path, threads: int | None) -> None:
        enter_engine_process(log_path, threads)
        self._config = config
        self._engine: Engine | None = None
        self._plans: dict[tuple[str, str], dict[int, ItemPlan]] = {}
        self._shards: deque[Shard] = deque()
        self._lock = threading.Lock()

    def load(self, checkpoint: Path) -> LoadReport:
        if self._engine is None:
            self._engine = build_engine(self._config)
        return self._engine.load(checkpoint)

    def evaluate(self, job: EvalJob, shards: Sequence[Shard], questions: Sequence[Question]) -> Iterator[ShardResult]:
        """Stream `shards` through the engine; yields each when its last item is done."""
        from evaluator.asking.prompts import Prompter
        from evaluator.checkpoints.tokenizer import load_tokenizer
        from evaluator.probes.stream import evaluate
        from evaluator.store.records import to_table

        engine = self._engine
        assert engine is not None, "load comes before evaluate"
        tokenizer = load_tokenizer(job.checkpoint, trust_remote_code=self._config.trust_remote_code)
        prompter = Prompter(
            tokenizer,
            chat=job.config.chat,
            prompt_tokens=job.config.prompt_tokens,
            one_shot_prompt_tokens=job.config.one_shot_prompt_tokens,
        )
        plans = self._plans.setdefault((job.task_key, _tokenizer_key(job.checkpoint)), {})
        with self._lock:
            self._shards = deque(shards)
        open_shards: dict[str, tuple[Shard, dict[int, Any]]] = {}
        shard_of: dict[tuple[str, str], tuple[str, int]] = {}

        def stream() -> Iterator[ItemPlan]:
            from evaluator.probes.item import plan

            while (shard := self._next_shard()) is not None:
                open_shards[shard.name] = (shard, {})
                for position in shard.questions:
                    if position not in plans:
                        plans[position] = plan(questions[position], prompter, job.config)
                    item = questions[position].item
                    shard_of[item.language, item.item_id] = (shard.name, position)
                    yield plans[position]

        for finished in evaluate(
            engine,
            stream(),
            config=job.config,
            stamp=_stamp(job.stamp, engine),
            decode=prompter.decode,
            eos_ids=prompter.eos_ids,
        ):
            item = finished.plan.question.item
            name, position = shard_of.pop((item.language, item.item_id))
            shard, done = open_shards[name]
            done[position] = finished.records
            if len(done) == len(shard.questions):
                del open_shards[name]
                records = [record for position in shard.questions for record in done[position]]
                yield ShardResult(shard=shard, table=to_table(records))

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def give_up(self, count: int) -> list[Shard]:
        """Take the last `count` shards that were not begun away from this engine."""
        with self._lock:
            return [self._shards.pop() for _ in range(min(count, len(self._shards)))]

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def read_ahead(self, checkpoint: Path) -> None:
        from evaluator.checkpoints.readahead import read_ahead

        read_ahead(checkpoint)

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def stats(self) -> EngineStats | None:
        return None if self._engine is None else self._engine.stats()

    def _next_shard(self) -> Shard | None:
        with self._lock:
            return self._shards.popleft() if self._shards else None


def prune_checkpoint(
    config: PruneConfig, out: Path, held_out: Mapping[str, str], provenance: Mapping[str, object], log_path: Path
) -> None:
    """The body of a prune task: the manifest in `out` is its result."""
    from launch.sweep.calibration import SOURCES
    from pruning.run import prune

    _log_to(log_path)
    prune(config, out, sources=SOURCES, held_out=held_out, provenance=provenance)


def _stamp(fields: Mapping[str, Any], engine: Engine) -> Stamp:
    from evaluator.probes.recording import Stamp

    return Stamp(**fields, engine=engine.name, engine_version=engine.version, dtype=engine.dtype)


def _tokenizer_key(checkpoint: Path) -> str:
    """Equal for checkpoints that tokenise alike: a pruned one carries its source's tokenizer files byte for byte."""
    import hashlib

    content = hashlib.sha256()
    for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
                 "chat_template.jinja", "generation_config.json"):  # fmt: skip
        path = checkpoint / name
        content.update(path.read_bytes() if path.exists() else b"-")
    return content.hexdigest()


def enter_engine_process(log_path: Path, threads: int | None) -> None:
    """What a Ray process does before it builds an engine. `threads`: what an engine on a CPU computes with."""
    _log_to(log_path)
    if threads is not None:
        # Ray makes it 1 for an actor without CPUs of its own. OpenMP reads it once, when torch is imported. vLLM
        # pins threads to cores in worker processes only; ours are free to move when a core is busy.
        os.environ["OMP_NUM_THREADS"] = str(max(1, min(threads, len(os.sched_getaffinity(0)))))
    # Inherited from a launcher, these would make a single engine believe that it is a part of a larger one.
    for name in [name for name in os.environ if name.startswith("VLLM_DP_")]:
        del os.environ[name]


def _log_to(path: Path) -> None:
    """Send this process's stdout and stderr, C++ side included, to a file of the run."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
