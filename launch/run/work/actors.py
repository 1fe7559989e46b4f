"""The code that runs in Ray's processes: one engine per actor, one checkpoint per
prune task.

An actor evaluates shards as one stream and yields each shard as soon as its last
item ends. `feed` adds shards to the stream, also of other tasks on the checkpoint, so
that it stays full."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from evaluator.asking.questions import Posed
from evaluator.checkpoints.files import changed_file, file_states
from evaluator.checkpoints.info import (
    CheckpointInfo,
    verify_tokenizer,
    verify_unchanged,
)
from evaluator.checkpoints.tensors import PROVEN, Proof
from evaluator.core.controls import change_of
from evaluator.core.errors import Document, EngineError, Json
from evaluator.core.gpus import mps_runs, numa_nodes, uses_mps
from evaluator.core.lease import Held
from evaluator.core.liveness import HEARTBEAT
from evaluator.core.memory import collect_rarely
from evaluator.engine.config import build_engine, engine_under
from evaluator.engine.endpoint import ENDPOINT
from evaluator.engine.processor import physical_cores
from launch.provenance import device, machine
from launch.run.decide.assignments import (
    Assignment,
    BaseAnswers,
    EngineSetup,
    Shard,
    ShardCollector,
    ShardResult,
    Shards,
    Where,
)
from launch.run.decide.nodes import NO_GPUS, Placement
from launch.run.decide.sharing import cores_of
from launch.sweep.plugins import load_plugins
from pruning.config import PruneConfig
from quantising.config import QuantiseConfig

if TYPE_CHECKING:
    from evaluator.asking.prompts import Prompter
    from evaluator.core.records import EngineStats, Item, Record
    from evaluator.engine.base import Engine, LoadReport
    from evaluator.probes.item import TaskRun

# The concurrency groups of calls that are answered during a stream; reading ahead may
# take minutes.
CONTROL, AHEAD = "control", "ahead"
_AHEAD_ITEMS, _AHEAD_SECONDS = 64, 0.05  # of tokenising; between two looks
_BEAT_SECONDS = 2.0  # between two checks of a prune task's progress


Questions = Sequence[Posed]


NewTask = tuple[Assignment, BaseAnswers | None]  # None: no probe reads them


class _Task(NamedTuple):
    """A task of a stream."""

    assignment: Assignment
    base: BaseAnswers | None
    questions: Questions
    known: dict[int, Posed]  # the tokenised ones, by position


class EngineActor:
    """Owns one engine. `start_actor` chooses its node and its GPUs."""

    def __init__(self, setup: EngineSetup) -> None:
        enter_engine_process(setup)
        self._config = setup.config
        self._logs = setup.log_path.parent
        visible, place = os.environ.get("CUDA_VISIBLE_DEVICES"), setup.place
        self._shares, self._on_gpu = place.sharing > 1, place.on_gpu
        self._gpu = f"{platform.node()}: {visible}" if place.on_gpu and visible else ""
        if self._gpu:
            print(f"GPU: {self._gpu}", flush=True)
        self._engine: Engine | None = None
        # (task, tokenizer) -> the tokenised questions, by position: shared by all
        # checkpoints with that tokenizer.
        self._tokenised: dict[tuple[str, str], dict[int, Posed]] = {}
        self._stream = 0
        self._tasks: dict[str, _Task] = {}  # of the stream, by name
        self._waiting: deque[Shard] = deque()  # shards that are not begun
        self._lock = threading.Lock()
        self._items = 0  # finished since the process began

    def load(self, checkpoint: CheckpointInfo) -> LoadReport:
        """Serve a checkpoint. Raises InputError if its files have changed since it
        was inspected."""
        if self._engine is None:
            changes: Json = {"kv_cache": checkpoint.kv_cache}
            if checkpoint.served:
                spent = f"spent-{checkpoint.weights_digest[:16]}.json"
                changes |= {"kind": ENDPOINT.name, "spending": self._logs / spent}
            config = engine_under(change_of(checkpoint.name), self._config)
            self._engine = build_engine(config.model_copy(update=changes))
        before = verify_unchanged(
            checkpoint, trust_remote_code=self._config.trust_remote_code
        )
        report = self._engine.load(checkpoint.path)
        if self._shares and mps_runs() and uses_mps(os.getpid()) is False:
            text = "the engine is no client of MPS, which runs: engines take turns"
            report = replace(report, notes=(*report.notes, text))
        if (changed := changed_file(before, file_states(checkpoint.path))) is not None:
            raise EngineError(
                f"{checkpoint.path / changed}: was written while it was loaded"
            )
        return report

    def evaluate(
        self, stream: int, shards: Shards, new: Sequence[NewTask], *questions: Questions
    ) -> Iterator[ShardResult]:
        """Yield each shard when its last item is done. `stream`: its number, for
        `feed`; `questions`: of each new task."""
        from evaluator.engine.admission import RefusingEngine
        from evaluator.probes.stream import Evaluation, items_at_once

        engine = self._engine
        assert engine is not None, "load comes before evaluate"
        with self._lock:
            self._stream, self._tasks, self._waiting = stream, {}, deque()
        self.feed(stream, shards, new, *questions)
        (first, _), *_ = new
        collector = ShardCollector()
        evaluation = Evaluation(
            self._begin(engine, collector), items_at_once(first.config)
        )
        serving: Any = engine
        if first.refusal is not None:
            serving = RefusingEngine(engine.name, first.refusal)
        try:
            with self._tokenising_ahead():
                yield from self._results(engine, evaluation.run(serving), collector)
        finally:
            with self._lock:  # their questions and answers may be large
                self._stream, self._tasks, self._waiting = 0, {}, deque()

    def _results(
        self,
        engine: Engine,
        items: Iterator[tuple[Item, list[Record]]],
        collector: ShardCollector,
    ) -> Iterator[ShardResult]:
        from evaluator.core.files import parquet_bytes
        from evaluator.store.records import failed_throughout, to_table

        for item, records in items:
            self._items += 1
            complete = collector.add(item, records)
            if complete is not None:
                shard, whole = complete
                keeps = self._tasks[shard.task].assignment.keeps
                kept = to_table(list(filter(keeps, whole)))
                engine.confirm()
                yield ShardResult(
                    shard=shard,
                    part=parquet_bytes(kept) if kept.num_rows else b"",
                    failed=failed_throughout(kept),
                    stats=engine.stats(),
                )

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def feed(
        self, stream: int, shards: Shards, new: Sequence[NewTask], *questions: Questions
    ) -> None:
        """Add shards to a stream, and its new tasks. One that has ended leaves them
        undone."""
        tasks = {}
        for (assignment, base), asked in zip(new, questions, strict=True):
            known = self._known(assignment)
            tasks[assignment.task] = _Task(assignment, base, asked, known)
        with self._lock:
            if stream == self._stream:
                self._tasks |= tasks
                # an earlier feed may have failed: the next stream meets its error
                self._waiting += [each for each in shards if each.task in self._tasks]

    def _begin(
        self, engine: Engine, collector: ShardCollector
    ) -> Iterator[tuple[Posed, TaskRun] | None]:
        """The tokenised questions of the waiting shards; None where none waits now. A
        shard begins when the stream has room for it."""
        from evaluator.probes.planning import tokenised

        tokenizer = self._tokenizer()
        runs: dict[str, TaskRun] = {}
        while True:
            with self._lock:
                shard = self._waiting.popleft() if self._waiting else None
            if shard is None:
                yield None
                continue
            assignment, base, questions, known = self._tasks[shard.task]
            if shard.task not in runs:
                runs[shard.task] = _run_of(assignment, base, tokenizer, engine)
            run = runs[shard.task]
            collector.begin(
                shard, [questions[position].item for position in shard.questions]
            )
            for position in shard.questions:
                question = known.pop(position, None) or tokenised(
                    questions[position], run.prompter, assignment.config
                )
                # the ids of long prompts would fill the memory
                if not assignment.config.length:
                    known[position] = question
                yield question, run

    def _known(self, assignment: Assignment) -> dict[int, Posed]:
        """The tokenised questions of its task, by position."""
        config = assignment.config
        # other probes and formats need other prompts
        task = "-".join((assignment.task_key, *config.probes, *config.formats))
        checkpoint = assignment.checkpoint
        verify_tokenizer(checkpoint)
        return self._tokenised.setdefault((task, checkpoint.tokenizer), {})

    def _tokenizer(self) -> Any:
        """Of the stream's checkpoint. It may serve one thread only."""
        from evaluator.checkpoints.tokenizer import load_tokenizer

        path = next(iter(self._tasks.values())).assignment.checkpoint.path
        trust = self._config.trust_remote_code
        return load_tokenizer(path, trust_remote_code=trust)

    @contextmanager
    def _tokenising_ahead(self) -> Iterator[None]:
        """Within the block, a thread tokenises the next questions: the tokenizer needs
        no Python while it works. On a CPU it would take the engine's cores."""
        if not self._on_gpu:
            yield
            return
        from evaluator.probes.planning import prompter_of, tokenised

        over = threading.Event()

        def work() -> None:
            tokenizer = self._tokenizer()
            prompters: dict[str, Prompter] = {}
            while not over.wait(_AHEAD_SECONDS):
                with self._lock:
                    waiting = [
                        (self._tasks[shard.task], position)
                        for shard in self._waiting
                        for position in shard.questions
                    ]
                for task, position in waiting[:_AHEAD_ITEMS]:
                    if over.is_set():
                        return
                    name, config = task.assignment.task, task.assignment.config
                    if name not in prompters:
                        prompters[name] = prompter_of(tokenizer, config)
                    if position not in task.known:
                        question = task.questions[position]
                        known = tokenised(question, prompters[name], config)
                        task.known[position] = known

        def try_to() -> None:
            # the engine's thread meets the error at its question
            with suppress(Exception):
                work()

        thread = threading.Thread(target=try_to, name="tokenising", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def where(self) -> Where:
        """Return this process's place. Ray queues the call until the process has it."""
        return _here(device(), self._gpu)

    @ray.method(concurrency_group=AHEAD)  # type: ignore[untyped-decorator]
    def read_ahead(self, checkpoint: Path) -> None:
        from evaluator.checkpoints.files import read_ahead

        read_ahead(checkpoint)

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def stats(self) -> EngineStats | None:
        return None if self._engine is None else self._engine.stats()

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def pulse(self) -> tuple[int, ...]:
        if self._engine is None:
            return (0,)
        stats = self._engine.stats()
        return self._items, stats.steps, stats.requests, stats.generated_tokens


def _run_of(
    assignment: Assignment, base: BaseAnswers | None, tokenizer: Any, engine: Engine
) -> TaskRun:
    from msgspec.structs import asdict

    from evaluator.probes.item import TaskRun
    from evaluator.probes.planning import prompter_of

    return TaskRun(
        config=assignment.config,
        probes=assignment.config.chosen,
        prompter=prompter_of(tokenizer, assignment.config),
        columns={
            **asdict(assignment.origin),
            "engine": engine.name,
            "engine_version": engine.version,
            "dtype": engine.dtype,
        },
        base=None if base is None else base.of,
        references=assignment.references,
    )


def start_actor(actor: type, setup: EngineSetup) -> Any:
    """Start an engine's actor on the node of `setup` if it lives and has room, else
    on any node with room."""
    place = setup.place
    if "OMP_NUM_THREADS" in os.environ:  # the user's, which the process inherits
        place = replace(place, threads=None)
    devices: Document = NO_GPUS
    if place.gpus:
        devices = {"num_gpus": place.gpus}
    elif place.visible:  # Ray has given this GPU to the first of its engines
        variables = {"CUDA_VISIBLE_DEVICES": place.visible}
        devices = {"num_gpus": 0, "runtime_env": {"env_vars": variables}}
    return ray.remote(
        **devices,
        # an engine that held a CPU for the whole run could block the prune tasks that
        # it waits for
        num_cpus=0,
        max_restarts=0,  # the driver itself replaces it, and loads a checkpoint
        # Ray puts an actor without resources on any node, despite SPREAD or a node's
        # name. One byte is enough.
        memory=1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            place.node_id, soft=not place.visible, _spill_on_unavailable=place.gpus > 0
        ),
        concurrency_groups={CONTROL: 1, AHEAD: 1},
    )(actor).remote(replace(setup, place=place))


def _here(device: str = "", gpu: str = "") -> Where:
    """The place of this process."""
    node_id = ray.get_runtime_context().get_node_id()
    pid, node = os.getpid(), platform.node()
    return Where(node=node, node_id=node_id, device=device, pid=pid, gpu=gpu)


def end_process(where: Where) -> None:
    """Kill a process of this run on any node; no error if it is already gone."""
    kill = ray.remote(num_cpus=0, max_retries=0)(_kill)
    if where.node_id == ray.get_runtime_context().get_node_id():
        _kill(where.pid)
    else:
        kill.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                where.node_id, soft=False
            )
        ).remote(where.pid)


def _kill(pid: int) -> None:
    with suppress(OSError):
        # the number may belong to another process by now
        if b"ray::" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def showing_life(path: Path) -> Iterator[None]:
    """Within the block, a thread writes place and heartbeats to `path`, which the
    driver reads (`TaskWatch`)."""
    where, ended = asdict(_here()), threading.Event()

    def write() -> None:
        written = None
        while True:
            if written != (beats := HEARTBEAT.beats):
                # a file server may be unreachable for a moment
                with suppress(OSError):
                    path.write_text(
                        json.dumps({"where": where, "beats": beats}), encoding="utf-8"
                    )
                    written = beats
            if ended.wait(_BEAT_SECONDS):
                return

    writer = threading.Thread(target=write, name="prune-pulse", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()
        with suppress(OSError):
            path.unlink()


def make_checkpoint(
    config: PruneConfig | QuantiseConfig,
    out: Path,
    proof: Proof | None,
    held_out: Mapping[str, str],
    provenance: Mapping[str, object],
    log_path: Path,
    pulse_path: Path,
) -> Proof | None:
    """The body of a task that prunes or quantises. `proof`: of its source. Returns
    that of `out` if it was written now."""
    _log_to(log_path)
    with showing_life(pulse_path):
        load_plugins()
        if proof is not None:
            PROVEN[config.source] = proof
        facts = {**provenance, **machine()}
        # the process of an earlier try goes on if its node is only out of reach
        while True:
            try:
                _make(config, out, held_out, facts)
                break
            except Held as error:
                print(f"waiting: {error}", flush=True)
                time.sleep(_BEAT_SECONDS)
    return PROVEN.pop(out.absolute(), None)


def _make(
    config: PruneConfig | QuantiseConfig,
    out: Path,
    held_out: Mapping[str, str],
    facts: Mapping[str, object],
) -> None:
    from launch.sweep.compress import SOURCES

    if isinstance(config, QuantiseConfig):
        from quantising.run import quantise

        quantise(config, out, sources=SOURCES, held_out=held_out, provenance=facts)
    else:
        from pruning.run import prune

        prune(config, out, sources=SOURCES, held_out=held_out, provenance=facts)


def enter_engine_process(setup: EngineSetup) -> None:
    """Prepare a Ray process for building an engine."""
    _log_to(setup.log_path)
    collect_rarely()
    if setup.place.sharing > 1:
        _stay_on_cores(setup.place)
    # vLLM's choice of runner, graphs and kernels
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    load_plugins()
    if setup.place.threads is not None:
        # Ray sets it to 1 for an actor without CPUs. OpenMP reads it once, when torch
        # is imported. vLLM pins threads to cores in worker processes only; ours can
        # move if a core is busy.
        os.environ["OMP_NUM_THREADS"] = str(
            max(1, min(setup.place.threads, len(os.sched_getaffinity(0))))
        )
    # Inherited from a launcher, these would make a single engine act as a part of a
    # larger one.
    for name in [name for name in os.environ if name.startswith("VLLM_DP_")]:
        del os.environ[name]


def _stay_on_cores(place: Placement) -> None:
    """Run this process on physical cores of its own, near its GPU."""
    nodes = [-1]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        nodes = numa_nodes() or nodes
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpu = int(visible) if visible.isdecimal() and int(visible) < len(nodes) else 0
    near = [number for number, node in enumerate(nodes) if node == nodes[gpu]]
    number = near.index(gpu) * place.sharing + place.slot
    cores = physical_cores(nodes[gpu])
    if own := cores_of(number, len(near) * place.sharing, cores):
        os.sched_setaffinity(0, own)
        print(f"processors: {sorted(own)}, of {len(cores)} physical cores", flush=True)


def _log_to(path: Path) -> None:
    """Send this process's stdout and stderr, also those of C++ code, to a file of
    the run."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as log:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
