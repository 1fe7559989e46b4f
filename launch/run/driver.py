"""A sweep from start to finish: prune, evaluate, report. The same call resumes.

Prune tasks run while the dense checkpoints are evaluated; a pruned checkpoint goes on the board as soon as its manifest
is written. On GPUs all pruning comes first, because an engine keeps its GPU until the run ends.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from evaluator.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evaluator.errors import InputError, ResurfaceError, one_line
from evaluator.probes.recording import Stamp
from evaluator.store.records import RecordStore
from launch.run.actors import prune_checkpoint
from launch.run.base_answers import NO_BASE, OTHER_TOKENIZER, BaseSource
from launch.run.board import Board
from launch.run.cluster import Cluster, cluster
from launch.run.nodes import prune_options
from launch.run.progress import Progress
from launch.run.provenance import provenance
from launch.run.quiet import captured
from launch.run.rundir import RunDirectory
from launch.run.shards import shards_of
from launch.run.work import Assignment, EngineSetup, EvalJob, Outcome
from launch.run.workers import EngineWorker
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Prepared
from pruning.output.manifest import read_manifest


def run_sweep(prepared: Prepared, run_dir: Path, progress: Progress) -> Outcome:
    """Do everything that the sweep asks for and `run_dir` does not yet hold; the caller writes the report.

    Raises InputError for what the user can mend, ResurfaceError when the work itself failed.
    """
    document = prepared.config.model_dump(mode="json")
    directory = RunDirectory(run_dir, prepared.identity, document, prepared.disk_bytes)
    store = RecordStore(run_dir)
    try:
        store.clean()
        directory.mark("running")
        run = _Run(prepared, run_dir, store, progress)
        try:
            with captured(progress.console, run_dir / "logs" / "driver.log"):
                outcome = run.execute()
        except (KeyboardInterrupt, SystemExit):  # Ctrl-C, or what Ray makes of SIGTERM
            directory.mark("interrupted", engine_stats=run.engine_stats)
            raise
        except BaseException as error:
            directory.mark("failed", error=str(error) or type(error).__name__, engine_stats=run.engine_stats)
            raise
        infos = [dataclasses.asdict(info) for info in run.infos]
        directory.mark("finished", checkpoints=infos, engine_stats=run.engine_stats)
        return outcome
    finally:
        store.close()  # an engine's thread may outlive this, and must not write once the lock is free
        directory.close()


class _Run:
    """The state of a running sweep: which checkpoints exist, and what is left to evaluate of each."""

    def __init__(self, prepared: Prepared, run_dir: Path, store: RecordStore, progress: Progress) -> None:
        self._prepared = prepared
        self._run_dir = run_dir
        self._store = store
        self._progress = progress
        self._board = Board()
        self.infos: list[CheckpointInfo] = []
        self.engine_stats: list[dict[str, Any]] = []  # of this call, per engine and loaded checkpoint
        self._items = 0

    def execute(self) -> Outcome:
        started = time.monotonic()
        for task, questions in self._prepared.questions_by_task.items():
            self._store.write_items(task, [(each.item, each.option_texts) for each in questions])
        to_prune = []
        for job in self._prepared.jobs:
            if job.prune is not None and read_manifest(job.path) is None:
                to_prune.append(job)
            else:  # preflight has checked an existing one against its manifest and its settings
                self._add(job)
        if to_prune or self._board.has_work:
            self._progress.stage("starting Ray")
            with cluster(self._run_dir / "logs") as machines:
                self._on(machines, to_prune)
        return Outcome(items=self._items, seconds=time.monotonic() - started)

    def _on(self, machines: Cluster, to_prune: Sequence[CheckpointJob]) -> None:
        self._board.expect(len(to_prune))
        workers: list[EngineWorker] = []
        if not machines.gpus:
            workers = self._start_engines(machines)
        try:
            self._prune(to_prune, machines, workers)
            if machines.gpus:
                workers = self._start_engines(machines)
            while any(worker.is_alive() for worker in workers):
                for worker in workers:
                    worker.join(timeout=0.2)
                _check(machines, workers)
            _check(machines, workers)
        except BaseException:
            self._board.stop()  # before Ray goes: no worker must take that for a death and try again
            raise
        finally:
            self.engine_stats = [
                {
                    "engine": worker.number,
                    "checkpoint": name,
                    "idle_share": stats.idle_share,
                    "waiting_share": stats.waiting_share,
                    **dataclasses.asdict(stats),
                    "scoring": worker.reports[load].scoring,
                    "notes": list(worker.reports[load].notes),
                }
                for worker in workers
                for (load, name), stats in list(worker.stats.items())
            ]

    def _start_engines(self, machines: Cluster) -> list[EngineWorker]:
        config = self._prepared.config
        per_engine = config.engine.tensor_parallel if machines.gpus else 0
        count = config.resources.engines or (max(1, machines.gpus // per_engine) if machines.gpus else 1)
        if count * per_engine > machines.gpus:  # Ray would wait for the missing GPUs forever
            raise InputError(
                f"resources.engines: {count} of tensor_parallel {per_engine} need {count * per_engine} GPUs, "
                f"there are {machines.gpus}"
            )
        questions = {task.key: ray.put(task.questions) for task in self._prepared.tasks}
        # All cores but one (driver, Ray, pruning) divided among the engines.
        threads = machines.engine_threads(machines.cpus - 1, count)
        workers = [
            EngineWorker(
                number,
                EngineSetup(
                    config=self._prepared.engine,
                    log_path=(self._run_dir / "logs").absolute() / f"engine-{number}.log",
                    gpus=per_engine,
                    threads=threads,
                ),
                board=self._board,
                store=self._store,
                questions=questions,
                reporter=self._progress,
                attempts=config.resources.attempts,
            )
            for number in range(count)
        ]
        for worker in workers:
            worker.start()
        return workers

    def _prune(self, jobs: Sequence[CheckpointJob], machines: Cluster, workers: Sequence[EngineWorker]) -> None:
        """Run every prune job; each finished checkpoint goes on the board at once."""
        task = ray.remote(**prune_options(gpu=machines.gpus > 0))(prune_checkpoint)
        log = (self._run_dir / "logs" / "prune.log").absolute()
        held_out = ray.put(dict(self._prepared.held_out))
        running: dict[Any, CheckpointJob] = {
            task.remote(job.prune.absolute(), job.path.absolute(), held_out, provenance(), log): job
            for job in jobs
            if job.prune is not None
        }
        self._progress.pruning(0, len(jobs))
        while running:
            done, _ = ray.wait(list(running), num_returns=1, timeout=0.2)
            _check(machines, workers)
            for pending in done:
                job = running.pop(pending)
                try:
                    ray.get(pending)
                except RayError as error:
                    raise _prune_failure(job, error) from error
                self._add(job, expected=1)
                self._progress.pruning(len(jobs) - len(running), len(jobs))

    def _add(self, job: CheckpointJob, expected: int = 0) -> None:
        """Put what is left to evaluate of a checkpoint on the board."""
        trust = self._prepared.engine.trust_remote_code
        info = self._prepared.dense.get(job.name) or inspect_checkpoint(job.path, job.name, trust_remote_code=trust)
        info = dataclasses.replace(info, path=info.path.absolute())  # engines are in other directories
        self.infos.append(info)
        assignments = []
        for task in self._prepared.asked[job.name]:
            finished = self._store.finished(job.name, task.name, info.weights_digest)
            shards = shards_of(task, finished, self._prepared.config.resources.shard_items)
            if not shards:
                self._progress.already_done(job.name, task.name, len(task.questions))
            eval_job = EvalJob(
                checkpoint=info.path,
                task_key=task.key,
                config=task.config,
                stamp=Stamp.of(info, job.base),
                base=self._base_of(job, info) if task.config.after_base else None,
            )
            assignments.append(Assignment(checkpoint=info, task=task.name, job=eval_job, shards=shards))
            self._items += assignments[-1].items
        self._board.add(assignments, expected)

    def _base_of(self, job: CheckpointJob, info: CheckpointInfo) -> BaseSource | None:
        """Whose answers probes of a checkpoint read that come after its base; None: it is its own base."""
        if job.base is None:
            return None if info.method is None else BaseSource(missing=NO_BASE)
        if job.name in self._prepared.other_tokenizer:
            return BaseSource(missing=OTHER_TOKENIZER)
        return BaseSource(name=job.base)


def _check(machines: Cluster, workers: Sequence[EngineWorker]) -> None:
    """Raise what ends the run: Ray is gone, or an engine could not do its work."""
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure
    machines.check()


def _prune_failure(job: CheckpointJob, error: RayError) -> ResurfaceError:
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, InputError):
        return InputError(f"{job.name}: {cause}")
    reason = str(cause) if isinstance(cause, ResurfaceError) else f"{type(cause).__name__}: {cause}"
    return ResurfaceError(f"pruning {job.name!r} failed: {one_line(reason, 300)}")
