"""The failures of a run: written to run.json at once, shown on the terminal, and read by a later call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from evaluator.core.errors import EngineError, InputError
from evaluator.store.csv_files import csv_bytes
from evaluator.store.failures import Failure, failure_frame
from evaluator.store.files import need_unfenced, write_atomically
from evaluator.store.records import RecordStore
from launch.run.decide.failures import Setback
from launch.run.directory.rundir import RunDirectory
from launch.run.work.progress import Progress
from launch.run.work.workers import EngineWorker
from launch.sweep.preflight import Prepared


class FailureLog:
    """The failures of a run. Those of an earlier call that still hold come first."""

    def __init__(
        self, prepared: Prepared, directory: RunDirectory, progress: Progress, earlier: Sequence[Failure] = ()
    ) -> None:
        self._prepared = prepared
        self._directory = directory
        self._progress = progress
        self._earlier = tuple(earlier)
        self._setbacks: tuple[Setback, ...] = ()
        self._new: tuple[Failure, ...] = ()
        self._write()

    @property
    def failures(self) -> tuple[Failure, ...]:
        return (*self._earlier, *self._new)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The failures as run.json stores them."""
        return [asdict(each) for each in self.failures]

    def look(self, setbacks: Sequence[Setback], workers: Sequence[EngineWorker]) -> None:
        """Record the setbacks that are new since the last call."""
        if len(setbacks) == len(self._setbacks):
            return
        nodes = {worker.number: worker.nodes for worker in workers}
        for setback in setbacks[len(self._setbacks) :]:
            failure = self._named(setback, nodes)
            self._new += (failure,)
            self._progress.warned(told(failure))
        self._setbacks = tuple(setbacks)
        self._directory.mark("running", failures=self.rows)
        self._write()

    def _write(self) -> None:
        """Write the table for readers of an unfinished run; the report writes it again."""
        file = self._directory.path / "tables" / "failures.csv"
        if self.failures:
            write_atomically(file, csv_bytes(failure_frame(self.failures)))
        elif file.exists():
            need_unfenced(file)
            file.unlink()

    def need_something(self, store: RecordStore) -> None:
        """Raises the first failure if no records exist at all: as InputError if the user can correct all failures."""
        if not self._setbacks or any(store.tables()):
            return
        kind = InputError if all(each.mendable for each in self._setbacks) else EngineError
        raise kind(f"nothing could be evaluated: {told(self._new[0])}; the same command tries again")

    def _named(self, setback: Setback, nodes: dict[int, set[str]]) -> Failure:
        found = Failure(
            checkpoint=setback.checkpoint,
            stage=setback.stage,
            task=setback.task,
            engine=", ".join(map(str, setback.engines)),
            node=", ".join(sorted({name for number in setback.engines for name in nodes.get(number, ())})),
            attempts=setback.attempts,
            reason=setback.reason,
        )
        if setback.question is None:
            return found
        task = next(each for each in self._prepared.asked[setback.checkpoint] if each.name == setback.task)
        item = task.questions[setback.question].item
        return replace(found, language=item.language, item=item.item_id)


def told(failure: Failure) -> str:
    """A failure in one line."""
    name, task = failure.checkpoint, failure.task
    match failure.stage:
        case "item":
            return f"{name}: item {failure.item!r} of {task} is recorded as engine_error: {failure.reason}"
        case "prune":
            return f"{name} could not be made: {failure.reason}"
        case "load":
            return f"{name} does not load, and was set aside: {failure.reason}"
        case "evaluate":
            return f"{f'{name}, {task}' if task else name}: was set aside: {failure.reason}"


def try_again(prepared: Prepared, directory: RunDirectory, store: RecordStore) -> list[Failure]:
    """Delete the records of an earlier call's failures, so that this call tries them again.

    Only a call that came to its end gives its failures a second try. After an interrupted call, failures with records
    are kept and returned. Records of mended models are always deleted.
    """
    for name in directory.mended:
        store.drop(name)
    kept = []
    for failure in directory.earlier_failures:
        name, task = failure.checkpoint, failure.task
        if task not in {each.name for each in prepared.asked.get(name, ())}:
            continue
        item = (failure.language, failure.item) if failure.stage == "item" else None
        if not store.holds(name, task, item) or (item is None and store.measured(name, task)):
            continue
        if not directory.was_ended:
            kept.append(failure)
            continue
        store.drop(name, task, item)
        for job in prepared.jobs:  # probes that read this answer had found none
            if item is not None and job.base == name:
                for asked in prepared.asked[job.name]:
                    if asked.name == task and asked.config.after_base:
                        store.drop(job.name, task, item)
    return kept
