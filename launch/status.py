"""The progress of a run, read from its files alone, without Ray or the driver's
process.

`run.json` has the plan and the state, the names of the parts end with their numbers of
finished items, `live.json` has the driver's current work, `logs/events.jsonl` the past,
and the lease shows whether the driver lives.
"""

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evaluator.core.errors import InputError, mapping_at, one_line, parse, rows_at
from evaluator.core.lease import FOLDER, PACE, beats_of, latest_claim
from evaluator.core.liveness import Pace, sight
from evaluator.store.run_json import screened_of
from launch.run.directory.events import History, read_history
from launch.run.directory.live import NAME as LIVE

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
    checkpoint: str
    task: str  # "": a whole checkpoint, set aside before its first question
    state: PartState
    done: int  # items with their records on disk
    total: int | None  # None: the files do not contain the number


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine's current work, and its waiting time on the previous checkpoint."""

    engine: int
    # "node-a: 3 (1/2)": it has half of the third GPU there; "": none, or unknown
    gpu: str
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
    # running, finished, finished_with_failures, failed, interrupted; stale: running
    # without a driver
    state: str
    why: str  # only for a stale or failed run
    driver: str | None  # only for a running or stale run
    done: int
    total: int | None
    checkpoints: int
    items_per_second: float | None
    seconds_left: float | None
    history: History
    pruned: int | None
    to_prune: int | None
    parts: tuple[PartStatus, ...]
    engines: tuple[EngineStatus, ...]
    errors: tuple[str, ...]

    def count(self, state: PartState) -> int:
        return sum(part.state == state for part in self.parts)


def read_status(
    run_dir: Path, *, sleep: Callable[[float], None] = time.sleep
) -> RunStatus:
    """Return the progress of a run. Raises InputError if `run_dir` is not a run
    directory.

    This returns at once, with one exception: the driver is on another machine and
    its last beat looks old. Clocks differ, so this then waits for a new beat."""
    file = run_dir / "run.json"
    if not file.is_file():
        raise InputError(f"{run_dir}: not a run directory: it has no run.json")
    try:
        document = parse(file.read_bytes(), str(file))
    except OSError as error:
        raise InputError(
            f"{file}: not a readable run file: {error.strerror}"
        ) from error
    if not isinstance(document, dict):
        raise InputError(f"{file}: must be a JSON object, is {type(document).__name__}")
    driver = (
        driver_of(run_dir, sleep=sleep) if document.get("state") == "running" else None
    )
    return summarise(
        str(run_dir),
        document,
        done=finished_items(run_dir / "records"),
        live=read_mapping(run_dir / LIVE),
        failures=[
            {name: str(value or "") for name, value in row.items()}
            for row in rows_at(document, "failures")
        ],
        driver=driver,
        history=read_history(run_dir),
    )


def read_mapping(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none."""
    if file.is_file():  # reading a pipe would never end
        with suppress(OSError, ValueError, RecursionError):
            return dict(mapping_at(json.loads(file.read_bytes())))
    return {}


def summarise(
    run: str,
    document: Mapping[str, Any],
    *,
    done: Mapping[Part, int],
    live: Mapping[str, Any],
    failures: Sequence[Mapping[str, str]],
    driver: Driver | None,
    history: History,
) -> RunStatus:
    """Combine the contents of the files; any of them may be missing, damaged or of
    another version. Pure."""
    running = driver is not None and driver.alive
    engines = _engines(rows_at(live, "engines")) if running else ()
    state, why = (
        str(document.get("state") or "unknown"),
        str(document.get("error") or ""),
    )
    if driver is not None and not driver.alive:
        state, why = "stale", f"{driver.why}; the same command resumes"
    parts = _parts(
        document, done, {(each.checkpoint, each.task) for each in engines}, failures
    )
    totals = [part.total for part in parts]
    total = None if None in totals else sum(filter(None, totals))
    rate = _number(live.get("items_per_second")) if running else None
    left = sum(
        (part.total or 0) - part.done
        for part in parts
        if part.state in ("running", "waiting")
    )
    pruning = mapping_at(live, "pruning") if running else {}
    # for a run without a driver: each engine with its last evaluated checkpoint
    if not engines:
        last = {
            _whole(row.get("engine")): row for row in rows_at(document, "engine_stats")
        }
        ended = {"state": "ended", "task": None, "items": 0, "done": 0, "seconds": 0}
        engines = _engines({**row, **ended} for row in last.values())
    errors = (
        [one_line(str(each)) for each in live["errors"]]
        if isinstance(live.get("errors"), list)
        else []
    )
    for row in failures:
        where = " ".join(
            row[name] for name in ("checkpoint", "task", "item") if row.get(name)
        )
        errors.append(
            f"{where}: {row.get('stage', '')}: {one_line(row.get('reason', ''))}"
        )
    return RunStatus(
        run=run,
        state=state,
        why=one_line(why, 500) if why else "",
        driver=None if driver is None else driver.name,
        done=sum(part.done for part in parts),
        total=total,
        checkpoints=len({part.checkpoint for part in parts}),
        items_per_second=rate,
        seconds_left=(
            _number(left / rate + _loading(parts, engines, history))
            if rate and total is not None
            else None
        ),
        history=history,
        pruned=_whole(pruning.get("done")),
        to_prune=_whole(pruning.get("total")),
        parts=parts,
        engines=engines,
        errors=tuple(errors[-_ERRORS:]),
    )


def _loading(
    parts: Sequence[PartStatus], engines: Sequence[EngineStatus], history: History
) -> float:
    """The seconds in which engines will start and load, by the mean of the loads so
    far."""
    each, loading = history.load_seconds, ("starting", "starting again", "loading")
    waiting = {part.checkpoint for part in parts if part.state == "waiting"} - {
        engine.checkpoint for engine in engines
    }
    begun = [
        max(0.0, each - engine.seconds) for engine in engines if engine.state in loading
    ]
    return (len(waiting) * each + sum(begun)) / max(1, len(engines))


def _parts(
    document: Mapping[str, Any],
    done: Mapping[Part, int],
    busy: Collection[tuple[str | None, str | None]],
    failures: Sequence[Mapping[str, str]],
) -> tuple[PartStatus, ...]:
    """Planned parts first, then parts with records only, then checkpoints without a
    plan.

    - A part that the gate decided early has no further questions; an earlier call
      may have evaluated more of it.
    - A checkpoint that was unusable when the run began is not in the plan."""
    planned = {
        (str(checkpoint), str(task)): count
        for checkpoint, tasks in mapping_at(document, "planned").items()
        for task, items in mapping_at(tasks).items()
        if (count := _whole(items)) is not None
    }
    screened = {
        (each.checkpoint, each.task): each.asked
        for each in screened_of(document)
        if each.early
    }
    lost = [
        (row.get("checkpoint", ""), row.get("task"))
        for row in failures
        if row.get("stage") != "item"
    ]
    parts = []
    for part in [*planned, *(part for part in done if part not in planned)]:
        (checkpoint, task), items, total = part, done.get(part, 0), planned.get(part)
        complete = total is not None and items >= total
        state: PartState = "done" if complete else "waiting"
        if part in screened:
            state, total = "decided early", max(items, screened[part])
        elif part in busy and not complete:
            state = "running"
        elif any(
            name == checkpoint and of in (task, "", None) for name, of in lost
        ):  # also if all its records exist
            state = "failed"
        parts.append(
            PartStatus(
                checkpoint=checkpoint, task=task, state=state, done=items, total=total
            )
        )
    known = {part.checkpoint for part in parts}
    unusable = dict.fromkeys(name for name, _ in lost if name and name not in known)
    return (
        *parts,
        *(
            PartStatus(checkpoint=name, task="", state="failed", done=0, total=0)
            for name in unusable
        ),
    )


def finished_items(records: Path) -> dict[Part, int]:
    """The number of items with records, by checkpoint and task. Opens only files
    whose name lacks the number."""
    found: dict[Part, int] = {}
    # leaves out folders that cannot be read
    for folder, folders, names in os.walk(records, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        parts = [
            Path(folder, name)
            for name in names
            if name.endswith(".parquet") and not name.startswith(".")
        ]
        place = Path(folder).relative_to(records).parts
        if len(place) == 2:
            folders.clear()
            found[place[0], place[1]] = sum(map(_items, parts))
    return found


def _items(part: Path) -> int:
    """The items of one part: from its name, else from its rows; 0 if they are
    unreadable."""
    name, _, count = part.stem.rpartition("-")
    if name and count.isdecimal():
        return int(count)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, pa.ArrowException):
        return len(
            pq.read_table(part, columns=["language", "item_id"])
            .group_by(["language", "item_id"])
            .aggregate([])
        )
    return 0


def driver_of(
    run_dir: Path, *, pace: Pace = PACE, sleep: Callable[[float], None] = time.sleep
) -> Driver:
    """Check whether the driver of a run in state "running" still lives."""
    claim = latest_claim(run_dir)
    if claim is None:
        return Driver(name="an unknown process", alive=False, why="its driver is gone")
    name = "an unknown process" if claim.owner is None else str(claim.owner)
    seen = (
        "gone"
        if claim.released
        else "elsewhere"
        if claim.owner is None
        else sight(claim.owner)
    )
    if seen == "running":
        return Driver(name=name, alive=True)
    if seen in ("gone", "stopped"):
        return Driver(name=name, alive=False, why=f"its driver ({name}) is {seen}")
    alive = False
    with suppress(OSError):
        file = run_dir / FOLDER / f"{claim.number:06d}.beat"
        alive = abs(time.time() - file.stat().st_mtime) <= pace.silence
    first, tries = beats_of(run_dir, claim), 0
    while not alive and tries < 5:
        tries += 1
        sleep(pace.beat_seconds / 2)
        alive = beats_of(run_dir, claim) != first
    return Driver(name=name, alive=alive, why=f"no sign of life of its driver ({name})")


def _engines(rows: Iterable[Mapping[str, Any]]) -> tuple[EngineStatus, ...]:
    return tuple(
        EngineStatus(
            engine=_whole(row.get("engine")) or 0,
            gpu=_text(row.get("gpu")) or "",
            state=str(row.get("state") or "unknown"),
            checkpoint=_text(row.get("checkpoint")),
            task=_text(row.get("task")),
            items=_whole(row.get("items")) or 0,
            done=_whole(row.get("done")) or 0,
            seconds=_number(row.get("seconds")) or 0.0,
            idle_share=_number(row.get("idle_share")),
            waiting_share=_number(row.get("waiting_share")),
        )
        for row in rows
    )


def _number(value: Any) -> float | None:
    """A number that JSON and a clock can show: not NaN, infinite, negative or too
    large; else None."""
    known = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= _LARGEST
    )
    return float(value) if known else None


def _whole(value: Any) -> int | None:
    return (
        value
        if isinstance(value, int)
        and not isinstance(value, bool)
        and 0 <= value <= _LARGEST
        else None
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
