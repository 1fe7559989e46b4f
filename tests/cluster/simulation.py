"""A made-up sweep of any size through the real driver, with pretended engines that
die.

No checkpoint file exists: `made_up` states what preflight would have found.
`simulate` measures the driver's cost and `mistakes` checks the records."""

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from evaluator.asking.questions import Question
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import InputError
from evaluator.probes.config import EvalConfig
from evaluator.store.records import RecordStore
from launch.run.decide.assignments import Outcome, origin_of
from launch.run.directory.lock import hold
from launch.run.state import Bus
from launch.run.work.driver import open_run, run_sweep
from launch.run.work.progress import Progress
from launch.run.work.workers import EngineWorker
from launch.sweep.config import Resources, SweepConfig
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Prepared
from launch.sweep.prepared_tasks import PreparedTask, TaskPreparation
from tests.cluster.answers import Answers
from tests.cluster.pretended_ray import PretendedRay

TASK, BASE = "gazetteer", "dense"
_METHODS = ("magnitude", "wanda", "sparsegpt", "ria")
_LANGUAGES = 9  # of the task
_POSITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a sweep is."""

    engines: int = 100
    checkpoints: int = 1000
    items: int = 1800  # of each checkpoint
    shard_items: int = 20


def made_up(size: Size) -> Prepared:
    """Raises InputError for more items than the task has."""
    config = EvalConfig(task=TASK, items=-(-size.items // _LANGUAGES))
    base = CheckpointJob(
        name=BASE, path=Path(BASE), model=BASE, base=None, tasks={TASK: config}
    )
    (whole,) = TaskPreparation(_POSITIONS, {}).tasks_of(base)
    if size.items > len(whole.questions):
        raise InputError(
            f"--items {size.items}: task {TASK} has {len(whole.questions)}"
        )
    task = PreparedTask(
        name=whole.name,
        key=whole.key,
        config=config,
        questions=whole.questions[: size.items],
    )
    infos = {info.name: info for info in map(_info, range(size.checkpoints))}
    jobs = tuple(
        CheckpointJob(
            name=name,
            path=info.path,
            model=BASE,
            base=BASE if info.method else None,
            tasks={TASK: config},
        )
        for name, info in infos.items()
    )
    sweep = SweepConfig(
        models={name: name for name in infos},
        tasks=(config,),
        resources=Resources(engines=size.engines, shard_items=size.shard_items),
    )
    return Prepared(
        config=sweep, jobs=jobs, dense=infos, tasks=(task,), asked=dict.fromkeys(infos, (task,)), engine=sweep.engine,
        identity={"models": {name: info.weights_digest for name, info in infos.items()}, "items": size.items},
        held_out={}, disk_bytes=0, other_tokenizer=frozenset(), served=(), unusable=(),
    )  # fmt: skip


def questions_of(prepared: Prepared) -> tuple[Question, ...]:
    """What every checkpoint is asked."""
    return tuple(
        each for each in prepared.tasks[0].questions if isinstance(each, Question)
    )


def _info(number: int) -> CheckpointInfo:
    """The base is number 0; no two others have the same setting."""
    method = None if number == 0 else _METHODS[number % len(_METHODS)]
    sparsity = None if number == 0 else round(0.1 + 0.8 * (number / 1000 % 1), 4)
    name = BASE if number == 0 else f"{method}-{sparsity:g}-{number:04d}"
    return CheckpointInfo(
        name=name, path=Path(name), weights_digest=f"{number:064x}", architecture="one", tensors=1, bytes=1,
        dtype="float32", method=method, pattern=None if method is None else "unstructured", sparsity=sparsity,
        calibration=None if method is None else "c4",
    )  # fmt: skip


_KEY = ("language", "item_id", "probe", "index", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run took of the driver's process, what is pretended and what came
    before not counted."""

    outcome: Outcome
    wall_seconds: float
    processor_seconds: float
    pretended_seconds: float
    megabytes_before: float
    megabytes: float  # at most

    def share_of_a_core(self, engines: int, pace: float) -> float:
        """What the driver takes of one core while so many engines each do `pace`
        items a second."""
        return self.processor_seconds / (self.outcome.items / (engines * pace))


def simulate(prepared: Prepared, ray: PretendedRay, out: Path) -> Cost:
    """Run a sweep into `out`."""
    with ExitStack() as stack:
        nobody = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(nobody))
        console = Console(file=nobody, width=120)
        stack.enter_context(ray.installed())
        stack.callback(_join_engines)
        progress = stack.enter_context(Progress(console))
        directory = open_run(prepared, out, stack.enter_context(hold(out)))
        # forget the highest memory so far
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, wall, processor = (
            _megabytes("VmRSS"),
            time.perf_counter(),
            time.process_time(),
        )
        outcome = run_sweep(prepared, directory, Bus(progress.on), console)
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
    return Cost(
        outcome=outcome, wall_seconds=wall, processor_seconds=processor - ray.seconds,
        pretended_seconds=ray.seconds, megabytes_before=before, megabytes=_megabytes("VmHWM"),
    )  # fmt: skip


def _join_engines() -> None:
    """Threads of a run that has failed are not waited for by its driver, and need
    what is pretended to their end."""
    for thread in threading.enumerate():
        if isinstance(thread, EngineWorker):
            thread.join()


def mistakes(prepared: Prepared, answers: Answers, out: Path) -> Mapping[str, int]:
    """What is wrong with a run's records: missing or double items, and checkpoints
    that differ. Empty: nothing."""
    store, found = RecordStore(out), Counter[str]()
    task = prepared.tasks[0]
    wanted = {
        (question.item.language, question.item.item_id) for question in task.questions
    }
    for job in prepared.jobs:
        keys: Counter[tuple[str, str]] = Counter()
        parts = [pq.read_table(path) for path in store.parts(job.name, task.name)]
        for part in parts:
            names = part["language"].to_pylist(), part["item_id"].to_pylist()
            keys.update({*zip(*names, strict=True)})
        found["missing"] += len(wanted - keys.keys())
        found["twice"] += sum(count - 1 for count in keys.values())
        origin = origin_of(prepared.dense[job.name], job.base)
        undisturbed = _sorted(answers.table(origin, range(len(task.questions))))
        same = parts and _sorted(pa.concat_tables(parts)).equals(undisturbed)
        found["different"] += not same
    return {what: count for what, count in found.items() if count}


def _sorted(records: pa.Table) -> pa.Table:
    return records.sort_by([(name, "ascending") for name in _KEY]).combine_chunks()


def _megabytes(kind: str) -> float:
    """What this process has in memory: now (VmRSS), or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return (
        next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))
        / 1024
    )
