"""A made-up sweep of any size through the real driver, with pretended engines that
die.

No checkpoint file exists: `made_up` states what preflight would have found.
`simulate` measures the driver's cost and `mistakes` checks the records."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from evaluator.asking.questions import Posed, Question
from evaluator.checkpoints.info import CheckpointInfo
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.core.errors import ResurfaceError, json_text
from evaluator.probes.config import EvalConfig
from evaluator.store.cells import Cells
from evaluator.store.records import RecordStore
from launch.commands.call import _end_of
from launch.run.decide.assignments import Outcome, origin_of
from launch.run.directory.event_log import EventLog, clock, read_state
from launch.run.directory.lock import hold
from launch.run.directory.rundir import open_run
from launch.run.events import Advanced, End, Event, Started
from launch.run.state import Bus, Listener
from launch.run.work.driver import run_sweep
from launch.run.work.progress import Progress
from launch.sweep.config import Resources, SweepConfig
from launch.sweep.jobs import CheckpointJob
from launch.sweep.models import BUNDLED_MODEL
from launch.sweep.preflight import Prepared
from launch.sweep.prepared_tasks import PreparedTask, TaskPreparation
from tests.cluster.answers import Answers
from tests.cluster.pretended_ray import Deaths, PretendedRay
from tests.cluster.virtual import VirtualWorld

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


def made_up(size: Size, **resources: int) -> Prepared:
    """`resources`: further ones of the sweep. Items beyond the task's are copies with
    ids of their own."""
    config = EvalConfig(task=TASK, items=-(-size.items // _LANGUAGES))
    base = CheckpointJob(
        name=BASE, path=Path(BASE), model=BASE, base=None, tasks={TASK: config}
    )
    tokenizers = {BASE: load_tokenizer(BUNDLED_MODEL)}
    (whole,) = TaskPreparation(_POSITIONS, tokenizers).tasks_of(base)
    task = PreparedTask(
        name=whole.name,
        key=whole.key,
        config=config,
        questions=tuple(islice(_copies(whole.questions), size.items)),
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
        resources=Resources(
            engines=size.engines, shard_items=size.shard_items, **resources
        ),
    )
    return Prepared(
        config=sweep, jobs=jobs, dense=infos, tasks=(task,), asked=dict.fromkeys(infos, (task,)), engine=sweep.engine,
        identity={"models": {name: info.weights_digest for name, info in infos.items()}, "items": size.items},
        held_out={}, disk_bytes=0, other_tokenizer=frozenset(), findings=(), unusable=(),
        differences={},
    )  # fmt: skip


def _copies(questions: Sequence[Posed]) -> Iterator[Posed]:
    """The questions again and again, each item under an id of its own."""
    for number in count():
        for each in questions:
            name = f"{each.item.item_id}{f'-{number}' if number else ''}"
            yield replace(each, item=replace(each.item, item_id=name))


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


def simulate(
    prepared: Prepared, ray: PretendedRay, out: Path, *listeners: Listener
) -> Cost:
    """Run a sweep into `out`."""
    with ExitStack() as stack:
        nobody = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(nobody))
        console = Console(file=nobody, width=120)
        stack.enter_context(ray.installed())
        progress = stack.enter_context(Progress(console))
        directory = open_run(prepared, out, stack.enter_context(hold(out)))
        # forget the highest memory so far
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, wall, processor = (
            _megabytes("VmRSS"),
            time.perf_counter(),
            time.process_time(),
        )
        told = (EventLog(out).on, progress.on, *listeners)
        bus = Bus(*told, clock=clock())
        bus.state = read_state(out)
        bus.report(Started())
        try:
            outcome = run_sweep(prepared, directory, bus, console)
        except BaseException as error:
            bus.report(_end_of(error))
            raise
        bus.report(End("finished_with_failures" if outcome.failures else "finished"))
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
    return Cost(
        outcome=outcome, wall_seconds=wall, processor_seconds=processor - ray.seconds,
        pretended_seconds=ray.seconds, megabytes_before=before, megabytes=_megabytes("VmHWM"),
    )  # fmt: skip


def mistakes(prepared: Prepared, answers: Answers, out: Path) -> Mapping[str, int]:
    """What is wrong with a run's records: missing or double items, and checkpoints
    that differ. Empty: nothing."""
    store, found = RecordStore(out), Counter[str]()
    of_cells = {cell.name: cell.key for cell in Cells(out)}
    task = prepared.tasks[0]
    wanted = {
        (question.item.language, question.item.item_id) for question in task.questions
    }
    for job in prepared.jobs:
        keys: Counter[tuple[str, str]] = Counter()
        key = of_cells.get((job.name, task.name), "")
        parts = [pq.read_table(path) for path in store.parts(key)] if key else []
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


SMALL = Size(engines=4, checkpoints=5, items=36, shard_items=6)
_WITHIN = 60  # of a small sweep's shards and loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of the driver in a virtual world."""

    trace: str  # digest of all logged events with their times
    turns: int
    seconds: float  # virtual ones
    died: Mapping[str, int]
    items: int  # that it evaluated
    given_up: tuple[str, ...]  # each in a line, or the error that ended the call
    mistakes: Mapping[str, int]  # of the records after it; empty: nothing


@cache
def small_sweep() -> tuple[Prepared, Answers]:
    prepared = made_up(SMALL, stall_seconds=20, load_seconds=20)
    return prepared, Answers(questions_of(prepared))


def call(seed: int, deaths: Deaths, out: Path) -> Call:
    """A small sweep, or its resumption. The seed decides whose turn it is."""
    prepared, answers = small_sweep()
    world = VirtualWorld(seed)
    lines: list[str] = []
    items, given_up = 0, list[str]()

    def note(event: Event, _: object) -> None:
        nonlocal items
        if event.logged:
            row = json_text(event.row()).replace(str(out), "RUN")
            lines.append(f"{world.now:.6f} {event.kind} {row}\n")
        if isinstance(event, Advanced):
            items += event.items

    with ExitStack() as stack:
        stack.enter_context(world.installed())
        ray = PretendedRay(
            nodes=3, gpus=2, answers=answers, deaths=deaths, pace=25.0, load_seconds=1.0
        )
        stack.enter_context(ray.installed())
        nobody = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        directory = open_run(prepared, out, stack.enter_context(hold(out)))
        stack.callback(world.end)
        bus = Bus(note, clock=world.monotonic)
        try:
            outcome = run_sweep(prepared, directory, bus, Console(file=nobody))
        except ResurfaceError as error:
            given_up.append(str(error))
        else:
            given_up += [failure.text for failure in outcome.failures]
            # without what was given up: the last line's items per second are of these
            assert outcome.items == items
    return Call(
        trace=hashlib.sha256("".join(lines).encode()).hexdigest(),
        turns=world.turns,
        seconds=world.now,
        died=dict(ray.died),
        items=items,
        given_up=tuple(given_up),
        mistakes=mistakes(prepared, answers, out),
    )


def fault_of(seed: int, out: Path) -> tuple[Call, str]:
    """A small sweep whose failures come in bursts, and what is wrong with it, in
    words: nothing, if each missing item is explained and the next call does exactly
    these."""
    first = call(seed, Deaths(seed=seed, within=_WITHIN, bursts=True), out)
    missing = first.mistakes.get("missing", 0)
    if first.mistakes.get("twice"):
        return first, f"records are there twice: {dict(first.mistakes)}"
    if missing and not first.given_up:
        return first, f"{missing} items are missing without a word"
    if not first.mistakes:
        return first, ""
    second = call(seed, Deaths(), out)
    if second.mistakes or second.given_up:
        return first, f"the next call ends with {second.mistakes}, {second.given_up}"
    if second.items != missing:
        return first, f"the next call evaluates {second.items} items, not {missing}"
    return first, ""


def again(seed: int) -> str:
    """The command that repeats an execution."""
    return f"python -m tests.cluster --virtual --seed {seed}"
