"""A made-up sweep through the real driver, with pretended engines that die; what it cost, and whether all is there."""

from __future__ import annotations

import cProfile
import os
import pstats
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.cluster.answers import Answers
from benchmarks.cluster.pretended_ray import PretendedRay
from evaluator.probes.recording import Stamp
from evaluator.store.records import RecordStore
from launch.run.driver import open_run, run_sweep
from launch.run.progress import Progress
from launch.run.work import Outcome
from launch.run.workers import EngineWorker
from launch.sweep.preflight import Prepared

_KEY = ("language", "item_id", "probe", "index", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a run took of the driver's process, what is pretended and what came before not counted."""

    outcome: Outcome
    wall_seconds: float
    processor_seconds: float
    pretended_seconds: float
    megabytes_before: float
    megabytes: float  # at most

    def share_of_a_core(self, engines: int, pace: float) -> float:
        """What the driver takes of one core while so many engines each do `pace` items a second."""
        return self.processor_seconds / (self.outcome.items / (engines * pace))


def simulate(prepared: Prepared, ray: PretendedRay, out: Path, *, terminal: bool = False) -> Cost:
    """Run a sweep into `out`; `terminal`: show its progress as on a terminal, to nobody."""
    with ExitStack() as stack:
        nobody = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(nobody))
        console = Console(file=nobody, force_terminal=terminal, width=120, height=50)
        stack.enter_context(ray.installed())
        stack.callback(_join_engines)
        progress = stack.enter_context(Progress(console))
        directory = stack.enter_context(open_run(prepared, out, progress))
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the highest memory so far
        before, wall, processor = _megabytes("VmRSS"), time.perf_counter(), time.process_time()
        outcome = run_sweep(prepared, directory, progress)
        processor, wall = time.process_time() - processor, time.perf_counter() - wall
    return Cost(
        outcome=outcome,
        wall_seconds=wall,
        processor_seconds=processor - ray.seconds,
        pretended_seconds=ray.seconds,
        megabytes_before=before,
        megabytes=_megabytes("VmHWM"),
    )


def _join_engines() -> None:
    """Threads of a run that has failed are not waited for by its driver, and need what is pretended to their end."""
    for thread in threading.enumerate():
        if isinstance(thread, EngineWorker):
            thread.join()


@contextmanager
def profiled(most: int) -> Iterator[None]:
    """Print the functions in which the driver's threads spend most processor time; `most` 0: do nothing."""
    profiles: list[cProfile.Profile] = []

    def run(worker: EngineWorker) -> None:
        profiles.append(cProfile.Profile(time.thread_time))
        profiles[-1].runcall(original, worker)

    original = EngineWorker.run
    with ExitStack() as stack:
        if most:
            stack.enter_context(mock.patch.object(EngineWorker, "run", run))
            profiles.append(stack.enter_context(cProfile.Profile(time.thread_time)))
        yield
    if most:
        stats = pstats.Stats(profiles[0])
        stats.add(*profiles[1:])
        stats.sort_stats("tottime").print_stats(most)
        stats.sort_stats("cumulative").print_stats(most)


def mistakes(prepared: Prepared, answers: Answers, out: Path) -> Mapping[str, int]:
    """What is wrong with the records of a run: how many items are missing or there twice, and of how many checkpoints
    the records are not those of a run in which nothing dies. Empty where all is well."""
    store, found = RecordStore(out), Counter[str]()
    task = prepared.tasks[0]
    wanted = {(question.item.language, question.item.item_id) for question in task.questions}
    for job in prepared.jobs:
        keys: Counter[tuple[str, str]] = Counter()
        parts = []
        for path in store.parts(job.name, task.name):
            part = pq.read_table(path)
            items = part.select(["language", "item_id"]).group_by(["language", "item_id"]).aggregate([])
            keys.update(zip(items["language"].to_pylist(), items["item_id"].to_pylist(), strict=True))
            parts.append(part)
        found["missing"] += len(wanted - keys.keys())
        found["twice"] += sum(count - 1 for count in keys.values())
        undisturbed = answers.table(Stamp.of(prepared.dense[job.name], job.base), range(len(task.questions)))
        found["different"] += not parts or not _sorted(pa.concat_tables(parts)).equals(_sorted(undisturbed))
    return {what: count for what, count in found.items() if count}


def _sorted(records: pa.Table) -> pa.Table:
    return records.sort_by([(name, "ascending") for name in _KEY]).combine_chunks()


def _megabytes(kind: str) -> float:
    """What this process has in memory: now (VmRSS), or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024
