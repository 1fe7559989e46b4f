"""The failures of a run: written to run.json at once, shown on the terminal, and read
by a later call.

The cause of a process's death is in the last lines of its log: the only information if
the process is gone.
"""

import contextlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from evaluator.core.errors import EngineError, InputError, ResurfaceError, one_line
from evaluator.core.files import csv_bytes, need_unfenced, write_atomically
from evaluator.core.liveness import Hung
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure, failure_frame
from launch.run.decide.assignments import Event, Listener
from launch.run.decide.failures import Setback
from launch.run.decide.fleet import Worker
from launch.run.directory.rundir import RunDirectory
from launch.sweep.preflight import Prepared

_TAIL_BYTES = 2**16
_MOST_BYTES = 2**25  # above this size, only the end of a log is kept
_ERROR = re.compile(
    # Python: the last line of a traceback
    r"\b(?:[A-Za-z_][\w.]*(?:Error|Exception)\b:\s+\S.*"
    r"|Fatal Python error: .*|SIG[A-Z]+ received at .*|Segmentation fault.*|Bus"
    r" error.*|Illegal instruction.*"
    r"|terminate called .*|Check failed: .*|(?:CUDA|NCCL|HIP) error.*"
    # vLLM: a process of one of an engine's GPUs
    r"|Worker proc .* died unexpectedly.*)"
)
# in a caller of an ended process
_EMPTY = re.compile(r"\b(?:RuntimeError|CancelledError): cancell?ed\s*$")


class FailureLog:
    """The failures of a run. Those of an earlier call that still hold come first."""

    def __init__(
        self,
        prepared: Prepared,
        directory: RunDirectory,
        report: Listener,
        earlier: Sequence[Failure] = (),
    ) -> None:
        self._prepared = prepared
        self._directory = directory
        self._report = report
        self._setbacks: list[Setback] = []
        self._first = len(earlier)  # the position of this call's first failure
        self.failures = tuple(earlier)
        self._write()

    def look(self, setbacks: Sequence[Setback], workers: Sequence[Worker]) -> None:
        """Record the setbacks that are new since the last call."""
        new = setbacks[len(self._setbacks) :]
        if not new:
            return
        nodes = {worker.number: worker.nodes for worker in workers}
        for setback in new:
            failure = Failure(
                checkpoint=setback.checkpoint,
                stage=setback.stage,
                task=setback.task,
                engine=", ".join(map(str, setback.engines)),
                node=", ".join(
                    sorted(
                        {
                            name
                            for number in setback.engines
                            for name in nodes.get(number, ())
                        }
                    )
                ),
                attempts=setback.attempts,
                reason=setback.reason,
            )
            if setback.question is not None:
                task = next(
                    each
                    for each in self._prepared.asked[setback.checkpoint]
                    if each.name == setback.task
                )
                item = task.questions[setback.question].item
                failure = replace(failure, language=item.language, item=item.item_id)
            self.failures += (failure,)
            event = Event(
                kind="gave_up",
                checkpoint=failure.checkpoint,
                task=failure.task,
                text=told(failure),
            )
            self._report(replace(event, state=failure.stage))
        self._setbacks += new
        self._directory.mark("running", failures=self.failures)
        self._write()

    def _write(self) -> None:
        """Write the table for readers of an unfinished run; the report writes it
        again."""
        file = self._directory.path / "tables" / "failures.csv"
        if self.failures:
            write_atomically(file, csv_bytes(failure_frame(self.failures)))
        elif file.exists():
            need_unfenced(file)
            file.unlink()

    def need_something(self, store: RecordStore) -> None:
        """Raises the first failure if no records exist at all: as InputError if the
        user can correct all failures."""
        if not self._setbacks or any(store.tables()):
            return
        kind = (
            InputError if all(each.mendable for each in self._setbacks) else EngineError
        )
        raise kind(
            f"nothing could be evaluated: {told(self.failures[self._first])}; the same"
            " command tries again"
        )


def told(failure: Failure) -> str:
    name, task = failure.checkpoint, failure.task
    match failure.stage:
        case "item":
            return (
                f"{name}: item {failure.item!r} of {task} is recorded as engine_error:"
                f" {failure.reason}"
            )
        case "prune":
            return f"{name} could not be made: {failure.reason}"
        case "load":
            return f"{name} does not load, and was set aside: {failure.reason}"
        case "evaluate":
            return (
                f"{f'{name}, {task}' if task else name}: was set aside:"
                f" {failure.reason}"
            )


def try_again(
    prepared: Prepared, directory: RunDirectory, store: RecordStore
) -> list[Failure]:
    """Delete the records of an earlier call's failures, so that this call tries them
    again.

    Only a call that came to its end gives its failures a second try. After an
    interrupted call, failures with records are kept and returned. Records of mended
    models are always deleted."""
    for name in directory.mended:
        store.drop(name)
    kept = []
    for failure in directory.earlier_failures:
        name, task = failure.checkpoint, failure.task
        if task not in {each.name for each in prepared.asked.get(name, ())}:
            continue
        item = (failure.language, failure.item) if failure.stage == "item" else None
        if not store.holds(name, task, item) or (
            item is None and store.measured(name, task)
        ):
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


def last_words(error: Exception, log: Path, start: int) -> str:
    """The cause of an error in one line; if Ray only knows that a process is gone,
    from its log after byte `start`."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    said = str(cause) if isinstance(cause, ResurfaceError | Hung) else ""
    if said and not _EMPTY.search(said):
        return one_line(said, 300)
    if isinstance(cause, OutOfMemoryError):
        return "its process was ended by Ray, as its node was running out of memory"
    if said or isinstance(cause, RayError):
        said = last_error(tail(log, start)) or said
        return one_line(
            said or "its process ended without a word: it was killed, or out of memory",
            300,
        )
    return f"{type(cause).__name__}: {one_line(cause, 300)}"


def last_error(log: str) -> str | None:
    """The last error in a log, without the logger's prefix; None without one."""
    for line in reversed(log.splitlines()):
        found = _ERROR.search(line)
        if found is not None and not _EMPTY.search(found[0]):
            return " ".join(found[0].split())
    return None


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def cut(path: Path) -> bool:
    """Shorten a log that has grown too long to its end; returns whether it had. Its
    process appends to the rest."""
    if size(path) <= _MOST_BYTES:
        return False
    kept = tail(path, 0)
    with contextlib.suppress(OSError):
        os.truncate(path, 0)
        with path.open("a", encoding="utf-8") as log:
            log.write(
                f"(what came before was dropped at {_MOST_BYTES >> 20} MiB)\n{kept}"
            )
    return True


def tail(path: Path, start: int) -> str:
    """The end of a log, from byte `start` at the earliest; empty if unreadable, as
    on another node's disk."""
    try:
        with path.open("rb") as log:
            log.seek(max(start, size(path) - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
