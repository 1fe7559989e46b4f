"""A sweep from start to finish: prune, evaluate, report. The same command resumes.

Prune tasks run while engines evaluate. A pruned checkpoint joins the board as soon as
its manifest is written. An engine keeps its GPUs as long as it has work, so on GPUs
pruning comes first. One engine starts as soon as a checkpoint is ready, unless it would
take all GPUs. The other engines start on GPUs that no prune job needs.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from rich.console import Console

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import EngineError, InputError, counted
from evaluator.engine.config import ENGINES
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure
from launch.process import captured
from launch.run.decide.assignments import EngineSetup, Outcome
from launch.run.decide.board import Board
from launch.run.decide.nodes import Nodes, Placement
from launch.run.decide.sharing import Trial, most_engines, room_for
from launch.run.directory.lock import STOP
from launch.run.directory.metrics import write_metrics
from launch.run.directory.rundir import RunDirectory, drop_references, set_damaged_aside
from launch.run.events import (
    Evaluated,
    GaveUp,
    Joined,
    Made,
    Noted,
    Phase,
    Planned,
    Retried,
    Warned,
)
from launch.run.state import Bus
from launch.run.work.cluster import Cluster, cluster, remove_leftovers, room_of_gpus
from launch.run.work.compress_tasks import CompressTasks
from launch.run.work.fleet import Fleet
from launch.run.work.remaining import Remaining
from launch.run.work.workers import EngineWorker, turn
from launch.sweep.jobs import CheckpointJob, Jobs
from launch.sweep.preflight import Inspections, Prepared
from launch.sweep.preflight_checks import manifest_of

_REMOTE = 4  # engines of models behind URLs, each of one model at a time
_POLL_SECONDS = 0.2  # between two checks for ended jobs
_METRICS_SECONDS = 3.0  # between two writes of metrics.prom
_NODES_SECONDS = 1.0  # between two checks of the nodes
_WRITE_SECONDS = 15.0  # between two writes of run.json


def run_sweep(
    prepared: Prepared,
    directory: RunDirectory,
    bus: Bus,
    console: Console,
    reuse: Sequence[Path] = (),
    held: Collection[str] = (),
) -> Outcome:
    """Do all that the directory and the runs `reuse` lack. `console`: the only output
    of this process meanwhile. `held`: checkpoints whose failures still hold; a base's
    never do.

    Raises InputError if the user can correct the cause, ResurfaceError if the work
    failed, LeaseLost to another driver.
    """
    run_dir, store = directory.path, RecordStore(directory.path)
    try:
        store.clean()
        set_damaged_aside(store, run_dir, lambda text: bus.report(Warned(text)))
        lost = {*held, *prepared.asked}
        prepared = prepared.without(held)
        lost -= prepared.asked.keys()
        failures = [each for each in bus.state.failures if each.checkpoint in lost]
        planned: dict[str, dict[str, int]] = {}
        seeds = {}
        for name, tasks in prepared.asked.items():
            planned[name] = {task.name: len(task.questions) for task in tasks}
            seeds[name] = {task.name: task.config.run_seeds for task in tasks}
        differences = prepared.differences
        directory.stated |= {
            "planned": planned,
            "seeds": seeds,
            "differences": differences,
        }
        bus.listeners.insert(0, directory.on)
        bus.report(Planned(planned, tuple(failures)))
        run = _Run(prepared, directory, store, bus, reuse)
        with captured(console, run_dir / "logs" / "driver.log"):
            outcome = run.execute()
        bus.report(
            Evaluated("finished_with_failures" if outcome.failures else "finished")
        )
        if not outcome.failures:
            drop_references(run_dir, all=not prepared.config.resources.keep_references)
        return outcome
    finally:
        store.close()


class _Run:
    """The state of a running sweep: its checkpoints, and the work left on each."""

    def __init__(
        self,
        prepared: Prepared,
        directory: RunDirectory,
        store: RecordStore,
        bus: Bus,
        reuse: Sequence[Path],
    ) -> None:
        self._prepared = prepared
        self._resources = prepared.config.resources
        self._directory = directory
        self._logs = directory.path.absolute() / "logs"
        self._store = store
        self._bus, self._report = bus, bus.report
        self._told = 0.0  # when metrics.prom was
        self._noted = 0  # of the board's failures
        self._infos: list[CheckpointInfo] = []
        self._written = self._looked = time.monotonic()
        self._to_make: set[str] = set()
        self._trial = Trial(1, "")
        self._refused = 0  # engines that did not start beside others
        self._memory = 1.0  # the part of each GPU that no other program holds
        self._board = Board(
            bus,
            self._resources.attempts,
            questions={task.key: task.questions for task in prepared.tasks},
        )
        self._board.source = self
        self._remaining = Remaining(prepared, directory, store, reuse, bus.report)

    @property
    def open(self) -> bool:
        """Whether checkpoints are still to be made: their work will follow."""
        return bool(self._to_make)

    def execute(self) -> Outcome:
        started, before = time.monotonic(), self._bus.state.items
        for task, questions in self._prepared.questions_by_task.items():
            asked = [(each.item, each.option_texts) for each in questions]
            self._store.write_items(task, asked)
        for failure in self._prepared.unusable:
            self._board.abandon(failure)
        self._note_failures()
        made = [job for job in self._prepared.jobs if job.is_made]
        to_make = [job for job in made if manifest_of(job) is None]
        self._to_make = {job.name for job in to_make}
        self._enqueue_existing()
        if to_make or self._board.has_work:
            self._report(Phase("starting Ray"))
            if not os.environ.get("RAY_ADDRESS"):
                for text in remove_leftovers():
                    self._report(Noted(text))
            trust = self._prepared.engine.trust_remote_code
            with (
                cluster(
                    self._logs, lambda text: self._report(Retried(text=text))
                ) as machines,
                Inspections(trust=trust) as inspected,
            ):
                self._work_until_done(machines, to_make, inspected)
        self._note_failures()
        self._remaining.tell_others()
        self._need_something()
        state = self._bus.state
        return Outcome(
            items=state.items - before,
            seconds=time.monotonic() - started,
            failures=state.failures,
        )

    def _note_failures(self) -> None:
        """Store and report the failures that are new since the last call, of all cells
        that share the records."""
        new = self._board.failures[self._noted :]
        if not new:
            return
        self._noted += len(new)
        for one in new:
            for failure in self._remaining.sharing(one):
                self._report(GaveUp(failure))
        self._directory.write(self._bus.state)

    def _need_something(self) -> None:
        """Raises the first failure if no records exist at all: as InputError if the
        user can correct all failures."""
        failures = self._board.failures
        if not failures or any(self._store.every_part()):
            return
        kind = InputError if all(each.mendable for each in failures) else EngineError
        raise kind(
            f"nothing could be evaluated: {failures[0].text}; the same command tries"
            " again"
        )

    # ---- the loop

    def _work_until_done(
        self, machines: Cluster, to_make: Jobs, inspected: Inspections
    ) -> None:
        """Make and evaluate checkpoints until nothing is left."""
        engine = self._prepared.config.engine
        questions = {task.key: ray.put(task.questions) for task in self._prepared.tasks}
        self._trial = self._trial_on(machines.nodes())
        fleet = Fleet(
            machines.nodes(),
            self._board,
            partial(self._worker, questions=questions),
            tensor_parallel=engine.tensor_parallel,
            wanted=self._resources.engines,
            remote=min(_REMOTE, len(self._board.remote)),
        )
        compressing = CompressTasks(
            to_make,
            self._prepared,
            self._logs,
            free=fleet.free if fleet.on_gpus else None,
            bus=self._bus,
        )
        try:
            if to_make:
                self._report(
                    Phase(f"compressing {counted(len(to_make), 'checkpoint')}")
                )
                self._report(Made(total=len(to_make)))
            self._report(Phase("evaluating"))
            while compressing.unfinished or fleet.working or not self._board.over:
                self._give_work(machines, fleet, compressing)
                self._take_results(fleet, compressing, inspected)
                self._look_after(machines, fleet, compressing)
            # the last engine may have failed meanwhile
            fleet.check(self._resources.placement_seconds)
        finally:
            for worker in fleet.workers:
                worker.close()
            self._note_failures()

    def _give_work(
        self, machines: Cluster, fleet: Fleet[EngineWorker], compressing: CompressTasks
    ) -> None:
        fleet.start_first()
        compressing.start(machines.nodes())
        fleet.start()
        self._share(fleet)
        self._board.short = compressing.short

    def _take_results(
        self,
        fleet: Fleet[EngineWorker],
        compressing: CompressTasks,
        inspected: Inspections,
    ) -> None:
        """Wait a moment, then take what has ended."""
        until = time.monotonic() + _POLL_SECONDS
        while (left := until - time.monotonic()) > 0:
            turn(fleet.workers, left)
            if not fleet.working:
                break
        made, failures = compressing.ended()
        inspected.begin(*made)
        for failure in failures:
            self._abandon(failure)
        if ended := inspected.ended():
            self._enqueue(ended, inspected)
        self._note_failures()

    def _look_after(
        self, machines: Cluster, fleet: Fleet[EngineWorker], compressing: CompressTasks
    ) -> None:
        """Raises the error that ends the run. Now and then, writes what is known and
        looks for new nodes."""
        self._directory.check()
        request = self._directory.path / STOP
        if request.exists():
            self._report(Noted(f"stopping: {request} exists"))
            raise KeyboardInterrupt  # as by Ctrl-C
        machines.check()
        busy = bool(compressing.running)
        fleet.check(
            self._resources.placement_seconds,
            pruning=busy,
            short=compressing.short and not busy,
        )
        now = time.monotonic()
        if now - self._told > _METRICS_SECONDS:
            self._told = now
            state = replace(self._bus.state, now=self._bus.clock())
            write_metrics(self._directory.path, state)
        if now - self._written > _WRITE_SECONDS:
            self._written = now
            self._directory.write(self._bus.state)
        if now - self._looked > _NODES_SECONDS:
            self._looked = now
            for node in fleet.follow(machines.nodes()):
                self._report(Joined(f"node {node.name} has joined"))

    def _trial_on(self, nodes: Nodes) -> Trial:
        """How many engines a GPU may have. Raises InputError for more than have room."""
        wanted, engine = self._resources.engines_per_gpu, self._prepared.engine
        alone = engine.tensor_parallel > 1 or not ENGINES[engine.kind].batches
        if wanted == 1 or alone or not any(node.gpus for node in nodes):
            return Trial(1, "")
        room = room_of_gpus(nodes)
        if room is None:
            return Trial(1, "") if wanted == "auto" else Trial.of(wanted)
        if room.memory and room.total:
            self._memory = room.memory / room.total
        most, limit = most_engines(
            room, self._prepared.largest, engine.max_model_len or 0
        )
        if wanted == "auto":
            if most == 1:
                self._report(Noted(f"resources.engines_per_gpu: auto: 1: {limit}"))
            return Trial(most, limit, mps=room.mps)
        if room.memory is not None:
            fits, limit = room_for(room.memory, self._prepared.largest)
            if wanted > fits:
                raise InputError(
                    f"resources.engines_per_gpu: {wanted}: there is room for {fits}:"
                    f" {limit} (GiB: 6 more for each engine, 4 for all)"
                )
        return Trial.of(wanted)

    def _share(self, fleet: Fleet[EngineWorker]) -> None:
        """Measure a GPU's engines, and give each GPU as many as the trial says."""
        decision, first = None, fleet.first()
        refused = [worker.refused for worker in fleet.workers if worker.refused]
        if len(refused) > self._refused:
            self._refused = len(refused)
            decision = self._trial.refused(refused[-1])
        elif first is not None and not self._trial.settled:
            decision = self._trial.look(
                time.monotonic(),
                [worker.reading() for worker in fleet.sharing(first)],
                self._board.count_left,
                first.start_seconds,
            )
        if decision is not None:
            self._report(Noted(f"resources.engines_per_gpu: {decision}"))
        fleet.share(self._trial.engines)

    def _worker(
        self, number: int, place: Placement, questions: Mapping[str, Any]
    ) -> EngineWorker:
        """The worker of an engine, not started. `questions`: task key -> object
        reference of its questions."""
        config = self._prepared.engine
        if place.gpus:
            place = replace(place, sharing=self._trial.most)
        if place.sharing > 1:
            memory = min(config.gpu_memory_utilization, self._memory)
            share = memory / place.sharing
            config = config.model_copy(
                update={"gpu_memory_utilization": share, "shared_gpu": True}
            )
        log = self._logs / f"engine-{number}.log"
        return EngineWorker(
            number,
            EngineSetup(config=config, log_path=log, place=place),
            board=self._board,
            store=self._store,
            questions=questions,
            resources=self._resources,
        )

    # ---- checkpoints

    def _enqueue_existing(self) -> None:
        """Put the checkpoints that exist on the board. Preflight has compared them with
        their manifests and settings."""
        jobs = [job for job in self._prepared.jobs if not job.is_variant]
        there = [job for job in jobs if job.name not in self._to_make]
        made = [job for job in there if job.name not in self._prepared.dense]
        if made:
            text = f"reading the weights of existing checkpoints: {len(made)}"
            self._report(Phase(text))
        trust = self._prepared.engine.trust_remote_code
        with Inspections(made, trust=trust) as inspected:
            self._enqueue(there, inspected)

    def _enqueue(self, jobs: Jobs, inspected: Inspections) -> None:
        """Put the remaining work of checkpoints on the board, or set unusable made
        ones aside. Raises InputError."""
        found: list[tuple[CheckpointJob, CheckpointInfo]] = []
        for job in jobs:
            if job.name in self._prepared.dense:  # preflight has told of it
                info = self._prepared.dense[job.name]
            else:
                try:
                    info = inspected.result(job.name)
                except InputError as error:
                    if not job.is_made:
                        raise
                    remedy = f"remove {job.path}, and the same command makes it again"
                    failure = Failure(
                        checkpoint=job.name,
                        stage="load",
                        reason=f"{error}; {remedy}",
                        mendable=True,
                    )
                    self._abandon(failure)
                    continue
                for note in info.notes:
                    self._report(Noted(note))
            # engines run in other directories
            info = replace(info, path=info.path.absolute())
            for each in (job, *self._variants(job.name)):
                own = info.with_cache(each.name, each.kv_cache)
                self._infos.append(own)
                if own.served == "url":
                    self._board.remote.add(each.name)
                found.append((each, own))
        assignments = self._remaining.of(found)
        self._directory.stated["checkpoints"] = self._infos
        self._directory.write(self._bus.state)
        self._board.add(assignments)
        self._to_make -= {job.name for job, _ in found}

    def _variants(self, name: str) -> list[CheckpointJob]:
        jobs = self._prepared.jobs
        return [each for each in jobs if each.is_variant and each.after == name]

    def _abandon(self, failure: Failure) -> None:
        """Give up a checkpoint and its variants."""
        self._to_make.discard(failure.checkpoint)
        for variant in self._variants(failure.checkpoint):
            self._board.abandon(replace(failure, checkpoint=variant.name))
        self._board.abandon(failure)
