"""The progress of a run, read from its files alone, without Ray or the driver's process.

- `run.json`: the plan and the state.
- The names of the parts: the finished items. A part's name ends with its number of items.
- `live.json`: the driver's current work.
- The lease: whether the driver lives.
"""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evaluator.core.errors import InputError, one_line, parse
from evaluator.core.liveness import LeaseClaim, Pace, sight
from evaluator.store.screening import screened_of
from launch.run.directory.live import NAME as LIVE
from launch.run.directory.lock import FOLDER, PACE, beats_of, latest_claim

Part = tuple[str, str]  # checkpoint, task
PartState = Literal["done", "running", "failed", "waiting", "decided early"]
_ERRORS = 5
_LARGEST = 10**12  # limit for any number in these files: items, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The process that writes the run."""

    name: str
    alive: bool
    why: str = ""  # the reason for taking it for dead


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """One task on one checkpoint."""

    checkpoint: str
    task: str  # "": a whole checkpoint, set aside before its first question
    state: PartState
    done: int  # items with their records on disk
    total: int | None  # None: the files do not contain the number


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine's current work, and its waiting time on the previous checkpoint."""

    engine: int
    state: str
    checkpoint: str | None
    task: str | None
    items: int
    done: int
    seconds: float
    idle_share: float | None
    waiting_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """All that the files show about a run."""

    run: str
    state: str  # running, finished, finished_with_failures, failed, interrupted; stale: running without a driver
    why: str  # only for a stale or failed run
    driver: str | None  # only for a running or stale run
    done: int
    total: int | None
    checkpoints: int
    items_per_second: float | None
    seconds_left: float | None
    pruned: int | None
    to_prune: int | None
    parts: tuple[PartStatus, ...]
    engines: tuple[EngineStatus, ...]
    errors: tuple[str, ...]

    def count(self, state: PartState) -> int:
        """Count the tasks of checkpoints in one state."""
        return sum(part.state == state for part in self.parts)


def read_status(run_dir: Path, *, sleep: Callable[[float], None] = time.sleep) -> RunStatus:
    """Return the progress of a run. Raises InputError if `run_dir` is not a run directory.

    This returns at once, with one exception: the driver is on another machine and its last beat looks old. Clocks
    differ, so this then waits for a new beat.
    """
    file = run_dir / "run.json"
    if not file.is_file():
        raise InputError(f"{run_dir}: not a run directory: it has no run.json")
    try:
        document = parse(file.read_bytes(), str(file))
    except OSError as error:
        raise InputError(f"{file}: not a readable run file: {error.strerror}") from error
    if not isinstance(document, dict):
        raise InputError(f"{file}: must be a JSON object, is {type(document).__name__}")
    driver = driver_of(run_dir, sleep=sleep) if document.get("state") == "running" else None
    return summarise(
        str(run_dir),
        document,
        done=finished_items(run_dir / "records"),
        live=_live(run_dir / LIVE),
        failures=_failures(document, run_dir / "tables" / "failures.csv"),
        driver=driver,
    )


def summarise(
    run: str,
    document: Mapping[str, Any],
    *,
    done: Mapping[Part, int],
    live: Mapping[str, Any],
    failures: Sequence[Mapping[str, str]],
    driver: Driver | None,
) -> RunStatus:
    """Combine the contents of the files; any of them may be missing, damaged or of another version. Pure."""
    running = driver is not None and driver.alive
    engines = tuple(_engines(live)) if running else ()
    state, why = str(document.get("state") or "unknown"), str(document.get("error") or "")
    if driver is not None and not driver.alive:
        state, why = "stale", f"{driver.why}; the same command resumes"
    parts = _parts(document, done, {(each.checkpoint, each.task) for each in engines}, failures)
    totals = [part.total for part in parts]
    total = None if None in totals else sum(filter(None, totals))
    rate = _number(live.get("items_per_second")) if running else None
    pruning = live.get("pruning")
    pruning = pruning if running and isinstance(pruning, dict) else {}
    return RunStatus(
        run=run,
        state=state,
        why=one_line(why, 500) if why else "",
        driver=None if driver is None else driver.name,
        done=sum(part.done for part in parts),
        total=total,
        checkpoints=len({part.checkpoint for part in parts}),
        items_per_second=rate,
        seconds_left=_seconds_left(parts, rate) if total is not None else None,
        pruned=_whole(pruning.get("done")),
        to_prune=_whole(pruning.get("total")),
        parts=parts,
        engines=engines or tuple(_engines_before(document)),
        errors=_errors(live, failures),
    )


def _seconds_left(parts: Iterable[PartStatus], rate: float | None) -> float | None:
    left = sum((part.total or 0) - part.done for part in parts if part.state in ("running", "waiting"))
    return _number(left / rate) if rate else None


def _parts(
    document: Mapping[str, Any],
    done: Mapping[Part, int],
    busy: Collection[tuple[str | None, str | None]],
    failures: Sequence[Mapping[str, str]],
) -> tuple[PartStatus, ...]:
    """Planned parts first, then parts with records only, then checkpoints without a plan."""
    planned = _planned(document)
    screened = {(each.checkpoint, each.task): each.asked for each in screened_of(document) if each.early}
    parts = [
        _screened(part, done.get(part, 0), screened[part])
        if part in screened
        else _part(part, done.get(part, 0), planned.get(part), part in busy, failures)
        for part in [*planned, *(part for part in done if part not in planned)]
    ]
    return (*parts, *_lost({part.checkpoint for part in parts}, failures))


def _part(part: Part, done: int, total: int | None, busy: bool, failures: Sequence[Mapping[str, str]]) -> PartStatus:
    checkpoint, task = part
    failed = any(
        each.get("checkpoint") == checkpoint and each.get("task") in (task, "", None) and each.get("stage") != "item"
        for each in failures
    )
    state: PartState = "waiting"
    if busy and not (total is not None and done >= total):
        state = "running"
    elif failed:  # also if all its records exist
        state = "failed"
    elif total is not None and done >= total:
        state = "done"
    return PartStatus(checkpoint=checkpoint, task=task, state=state, done=done, total=total)


def _lost(known: Collection[str], failures: Sequence[Mapping[str, str]]) -> Iterator[PartStatus]:
    """The checkpoints that were unusable when the run began: the plan does not contain them."""
    named = [each.get("checkpoint", "") for each in failures if each.get("stage") != "item"]
    for name in dict.fromkeys(named):
        if name and name not in known:
            yield PartStatus(checkpoint=name, task="", state="failed", done=0, total=0)


def _screened(part: Part, done: int, asked: int) -> PartStatus:
    """A part without further questions; an earlier call may have evaluated more than its anchors."""
    return PartStatus(checkpoint=part[0], task=part[1], state="decided early", done=done, total=max(done, asked))


def finished_items(records: Path) -> dict[Part, int]:
    """The number of items with records, by checkpoint and task. Opens only files whose name lacks the number."""
    found: dict[Part, int] = {}
    for checkpoint in _folders(records):
        for task in _folders(records / checkpoint):
            folder = records / checkpoint / task
            found[checkpoint, task] = sum(_items(folder / name) for name in _names(folder) if name.endswith(".parquet"))
    return found


def _items(part: Path) -> int:
    """The items of one part: from its name, else from its rows; 0 if they are unreadable."""
    count = part.stem.rpartition("-")[2]
    if part.name.startswith("."):
        return 0
    if "-" in part.stem and count.isdecimal():
        return int(count)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, pa.ArrowException):
        return len(pq.read_table(part, columns=["language", "item_id"]).group_by(["language", "item_id"]).aggregate([]))
    return 0


def _folders(path: Path) -> list[str]:
    with suppress(OSError), os.scandir(path) as found:
        return sorted(each.name for each in found if each.is_dir() and not each.name.startswith("."))
    return []


def _names(path: Path) -> list[str]:
    with suppress(OSError):
        return os.listdir(path)
    return []


def driver_of(run_dir: Path, *, pace: Pace = PACE, sleep: Callable[[float], None] = time.sleep) -> Driver:
    """Check whether the driver of a run in state "running" still lives."""
    claim = latest_claim(run_dir)
    if claim is None:
        return Driver(name="an unknown process", alive=False, why="its driver is gone")
    name = "an unknown process" if claim.owner is None else str(claim.owner)
    if claim.released:
        return Driver(name=name, alive=False, why=f"its driver ({name}) is gone")
    seen = "elsewhere" if claim.owner is None else sight(claim.owner)
    if seen == "running":
        return Driver(name=name, alive=True)
    if seen == "gone":
        return Driver(name=name, alive=False, why=f"its driver ({name}) is gone")
    why = f"its driver ({name}) is stopped" if seen == "stopped" else f"no sign of life of its driver ({name})"
    return Driver(name=name, alive=seen == "elsewhere" and _beats(run_dir, claim, pace, sleep), why=why)


def _beats(run_dir: Path, claim: LeaseClaim, pace: Pace, sleep: Callable[[float], None]) -> bool:
    with suppress(OSError):
        file = run_dir / FOLDER / f"{claim.number:06d}.beat"
        if abs(time.time() - file.stat().st_mtime) <= pace.silence:
            return True
    first = beats_of(run_dir, claim)
    for _ in range(5):
        sleep(pace.beat_seconds / 2)
        if beats_of(run_dir, claim) != first:
            return True
    return False


def _live(file: Path) -> dict[str, Any]:
    """The contents of `live.json`; empty if unreadable. Skips a pipe, because reading it would never end."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(file.read_bytes()) if file.is_file() else None
        if isinstance(found, dict):
            return found
    return {}


def _failures(document: Mapping[str, Any], file: Path) -> list[dict[str, str]]:
    """The failures: from `run.json`, which has each one at once, else from the table."""
    rows: Iterable[Any] = ()
    if isinstance(document.get("failures"), list):
        rows = document["failures"]
    else:
        with suppress(OSError, csv.Error, ValueError), file.open(encoding="utf-8", newline="") as opened:
            rows = list(csv.DictReader(opened))
    return [{str(name): str(value or "") for name, value in row.items()} for row in rows if isinstance(row, dict)]


def _planned(document: Mapping[str, Any]) -> dict[Part, int]:
    planned = document.get("planned")
    return {
        (str(checkpoint), str(task)): count
        for checkpoint, tasks in (planned.items() if isinstance(planned, dict) else ())
        if isinstance(tasks, dict)
        for task, items in tasks.items()
        if (count := _whole(items)) is not None
    }


def _engines(live: Mapping[str, Any]) -> Iterator[EngineStatus]:
    rows = live.get("engines")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict):
            yield EngineStatus(
                engine=_whole(row.get("engine")) or 0,
                state=str(row.get("state") or "unknown"),
                checkpoint=_text(row.get("checkpoint")),
                task=_text(row.get("task")),
                items=_whole(row.get("items")) or 0,
                done=_whole(row.get("done")) or 0,
                seconds=_number(row.get("seconds")) or 0.0,
                idle_share=_number(row.get("idle_share")),
                waiting_share=_number(row.get("waiting_share")),
            )


def _engines_before(document: Mapping[str, Any]) -> Iterator[EngineStatus]:
    """For a run without a driver: each engine with its last evaluated checkpoint."""
    rows = document.get("engine_stats")
    last = {_whole(row.get("engine")): row for row in (rows if isinstance(rows, list) else []) if isinstance(row, dict)}
    for row in last.values():
        yield from _engines({"engines": [{**row, "state": "ended", "task": None, "items": 0, "done": 0, "seconds": 0}]})


def _errors(live: Mapping[str, Any], failures: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    said = live.get("errors")
    told = [one_line(str(each)) for each in said] if isinstance(said, list) else []
    for each in failures:
        where = " ".join(each[name] for name in ("checkpoint", "task", "item") if each.get(name))
        told.append(f"{where}: {each.get('stage', '')}: {one_line(each.get('reason', ''))}")
    return tuple(told[-_ERRORS:])


def _number(value: Any) -> float | None:
    """A number that JSON and a clock can show: not NaN, infinite, negative or too large; else None."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    return float(value) if known else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
