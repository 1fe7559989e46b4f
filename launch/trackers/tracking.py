"""Sends a run's results to an experiment tracker, checkpoint by checkpoint, while the run works (`--track`).

A checkpoint is sent when it and its base have all their records: its settings, the numbers of its headline row, its
tables and figures. A separate thread computes these from the records on disk. `RUN/tracking.json` stores what was
sent and the tracker's ids, so that a resumed run continues under the same ids.
"""

from __future__ import annotations

import json
import math
import queue
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from evaluator.core.errors import ResurfaceError, one_line, parse
from evaluator.store.files import write_atomically
from evaluator.store.screening import screened_of
from launch.status import finished_items

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event
    from launch.sweep.preflight import Prepared

NAME = "tracking.json"
_T = TypeVar("_T")
Parameters = Mapping[str, str]
Numbers = Mapping[str, float]


class Tracker(Protocol):
    """An experiment tracker. An exception of its methods becomes a warning and ends nothing."""

    name: str

    def begin(self, run: str, known: str | None, parameters: Parameters) -> str:
        """Begin a run, or continue the one with the id `known`; returns its id."""
        ...

    def checkpoint(self, parent: str, name: str, parameters: Parameters, numbers: Numbers, folder: Path) -> str:
        """Send an ended checkpoint as a separate run below `parent`; `folder` holds its files. Returns its id."""
        ...

    def end(self, run: str, files: Sequence[Path], finished: bool) -> None:
        """End the run and send the `files` that it wrote; not `finished`: it failed or was interrupted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """One checkpoint, with the values that a tracker needs."""

    name: str
    base: str | None
    parameters: Parameters
    planned: Mapping[str, int]  # items by task


@dataclass(slots=True)
class _Told:
    """The content of `tracking.json`."""

    run: str
    checkpoints: dict[str, str] = field(default_factory=dict)


class Tracking:
    """Checks after every turn of an engine (`look`) for ended checkpoints, and sends them to a tracker.

    A context manager around the run. A run that finishes calls `finish` before the context ends.
    """

    def __init__(
        self,
        tracker: Tracker,
        run_dir: Path,
        checkpoints: Sequence[Tracked],
        parameters: Parameters,
        warn: Callable[[str], None],
    ) -> None:
        self.name = tracker.name
        self._tracker = tracker
        self._run_dir = run_dir
        self._left = {each.name: each for each in checkpoints}
        self._all = dict(self._left)
        self._parameters = parameters
        self._warn = warn
        self._looks: queue.SimpleQueue[bool] = queue.SimpleQueue()  # False: the last one
        self._files: list[Path] = []
        self._finished = False
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def __enter__(self) -> Tracking:
        self._thread.start()
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        self._looks.put(False)
        self._thread.join()

    def on(self, event: Event) -> None:
        """Receives the events of a run."""
        if event.kind == "ended":
            self.look()

    def look(self) -> None:
        """Request a check for ended checkpoints. Returns at once."""
        self._looks.put(True)

    def finish(self, files: Sequence[Path]) -> None:
        """Record that the run has finished and has written these files."""
        self._files, self._finished = list(files), True

    def _work(self) -> None:
        told = self._guarded(self._begin)
        if told is None:
            return
        more = True
        while more:
            more = self._looks.get()
            while more and not self._looks.empty():  # one check covers all checkpoints that have ended meanwhile
                more = self._looks.get()
            for each in ended(self._left, self._all, self._done()):
                del self._left[each.name]  # if sending fails, the same command sends it again
                self._guarded(partial(self._tell, told, each))
        self._guarded(partial(self._tracker.end, told.run, self._files, self._finished))

    def _done(self) -> dict[tuple[str, str], float]:
        """The number of items with records. A task that the gate decided early counts as complete."""
        screened = screened_of(_document(self._run_dir / "run.json"))
        found: dict[tuple[str, str], float] = {**finished_items(self._run_dir / "records")}
        return found | {(each.checkpoint, each.task): math.inf for each in screened if each.early}

    def _guarded(self, act: Callable[[], _T]) -> _T | None:
        """Return the result of `act`; if it fails, warn the user and return None."""
        try:
            return act()
        except Exception as error:  # a tracker is foreign code, and its server may be unreachable
            self._warn(f"--track {self._tracker.name}: {type(error).__name__}: {one_line(error)}; the run continues")
            return None

    def _begin(self) -> _Told:
        before = _read(self._run_dir / NAME, self._tracker.name)
        known = None if before is None else before.run
        run = self._tracker.begin(self._run_dir.resolve().name, known, self._parameters)
        told = _Told(run, {} if before is None else before.checkpoints)
        self._remember(told)
        for name in told.checkpoints:
            self._left.pop(name, None)
        return told

    def _tell(self, told: _Told, each: Tracked) -> None:
        from evaluator.report import write_part

        with tempfile.TemporaryDirectory(prefix="resurface-tracking-") as folder:
            results = write_part(self._run_dir, {each.name, each.base or each.name}, Path(folder))
            rows = results.headline[results.headline["checkpoint"] == each.name].to_dict("records")
            numbers = numbers_of(rows)
            told.checkpoints[each.name] = self._tracker.checkpoint(
                told.run, each.name, each.parameters, numbers, Path(folder)
            )
        self._remember(told)

    def _remember(self, told: _Told) -> None:
        document = _document(self._run_dir / NAME)
        document[self._tracker.name] = {"run": told.run, "checkpoints": told.checkpoints}
        write_atomically(self._run_dir / NAME, json.dumps(document, indent=2).encode())


def tracked(prepared: Prepared) -> list[Tracked]:
    """The checkpoints of a sweep."""
    return [
        Tracked(
            name=job.name,
            base=job.base,
            parameters=flattened(
                {
                    "model": job.model,
                    "base": job.base,
                    "prune": job.prune and job.prune.model_dump(mode="json"),
                    "compress": job.quantise and job.quantise.model_dump(mode="json"),
                    "after": job.after,
                }
            ),
            planned={task.name: len(task.questions) for task in prepared.asked[job.name]},
        )
        for job in prepared.jobs
    ]


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"a": {"b": 1}}` as `{"a.b": "1"}`; null is left out. Pure."""
    found: dict[str, str] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{name}.")
        elif value is not None:
            found[prefix + name] = value if isinstance(value, str) else json.dumps(value, default=str)
    return found


def ended(
    left: Mapping[str, Tracked], checkpoints: Mapping[str, Tracked], done: Mapping[tuple[str, str], float]
) -> list[Tracked]:
    """The checkpoints in `left` that have all their records, and whose bases have theirs. Pure."""

    def complete(each: Tracked) -> bool:
        return all(done.get((each.name, task), 0) >= items for task, items in each.planned.items())

    return [
        each
        for each in left.values()
        if complete(each) and (each.base is None or each.base not in checkpoints or complete(checkpoints[each.base]))
    ]


def numbers_of(rows: Sequence[Mapping[Any, Any]]) -> dict[str, float]:
    """The finite numbers of a headline's rows, as `task/column`. Pure."""
    return {
        f"{row['task']}/{name}": float(value)
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _read(file: Path, tracker: str) -> _Told | None:
    found = _document(file).get(tracker)
    if not isinstance(found, dict) or not found.get("run") or not isinstance(found.get("checkpoints"), dict):
        return None
    return _Told(str(found["run"]), {str(name): str(known) for name, known in found["checkpoints"].items()})


def _document(file: Path) -> dict[str, Any]:
    with suppress(OSError, ResurfaceError):
        found = parse(file.read_bytes(), str(file))
        if isinstance(found, dict):
            return found
    return {}
