"""The progress of a run, read from its files alone, without Ray or the driver's
process.

`run.json` has the plan and the state, the names of the parts end with their numbers of
finished items, `live.json` has the driver's current work, `logs/events.jsonl` the past,
and the lease shows whether the driver lives.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from evaluator.core.errors import InputError, Json, one_line
from evaluator.core.lease import FOLDER, PACE, beats_of, latest_claim
from evaluator.core.liveness import Pace, Sight, sight
from evaluator.store.run_json import Failure, Served, failures_of, no_run, rows_as
from launch.run.directory.event_log import History, read_history
from launch.run.directory.live import EngineStatus, Live, read_live
from launch.run.events import COMPLETING, Part, Planned, Recorded
from launch.run.state import (
    ERRORS,
    EngineState,
    PartState,
    PartStatus,
    RunState,
    advance,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The process that writes the run."""

    name: str
    alive: bool
    why: str = ""  # the reason for taking it for dead


class LastGate(BaseModel):
    """What the last `gate` wrote into RUN/gate.json."""

    verdict: str
    summary: str


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
    gate: LastGate | None = None

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
        raise no_run(run_dir, "run.json")
    try:
        run = RunDocument.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file}: not a readable run file: {error.strerror}"
        ) from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ": ".join([str(file), *map(str, problem["loc"])])
        raise InputError(f"{place}: {one_line(problem['msg'])}") from error
    driver = driver_of(run_dir, sleep=sleep) if run.state == "running" else None
    found = summarise(
        str(run_dir),
        run,
        done=finished_items(run_dir / "records"),
        live=read_live(run_dir),
        driver=driver,
        history=read_history(run_dir),
    )
    with suppress(OSError, ValidationError):
        gate = (run_dir / "gate.json").read_bytes()
        return replace(found, gate=LastGate.model_validate_json(gate))
    return found


class RunDocument(BaseModel, extra="allow"):
    """The fields of run.json that tell how far a run is."""

    state: str = "unknown"
    error: str | None = None
    planned: dict[str, dict[str, int]] = {}

    @property
    def rows(self) -> Json:
        """The other fields."""
        return self.model_extra or {}


def summarise(
    name: str,
    run: RunDocument,
    *,
    done: Mapping[Part, int],
    live: Live,
    driver: Driver | None,
    history: History,
) -> RunStatus:
    """Combine the contents of the files. Pure."""
    failures = failures_of(run.rows)
    running = driver is not None and driver.alive
    if not running:
        live = Live(errors=live.errors)
    if not live.engines:
        live = replace(live, engines=_last_engines(run))
    state = _state_of(run, done, failures, live.engines)
    parts = tuple(state.parts())
    totals = [part.total for part in parts]
    total = None if None in totals else sum(filter(None, totals))
    status, why = run.state, run.error or ""
    if driver is not None and not running:
        status, why = "stale", f"{driver.why}; the same command resumes"
    compressed = live.pruning or {}
    errors = [*live.errors, *map(_error_line, failures)]
    return RunStatus(
        run=name,
        state=status,
        why=one_line(why, 500) if why else "",
        driver=None if driver is None else driver.name,
        done=sum(part.done for part in parts),
        total=total,
        checkpoints=len({part.checkpoint for part in parts}),
        items_per_second=live.items_per_second,
        seconds_left=None if total is None else _seconds_left(parts, live, history),
        history=history,
        pruned=compressed.get("done"),
        to_prune=compressed.get("total"),
        parts=parts,
        engines=live.engines,
        errors=tuple(errors[-ERRORS:]),
    )


def _state_of(
    run: RunDocument,
    done: Mapping[Part, int],
    failures: Sequence[Failure],
    engines: Sequence[EngineStatus],
) -> RunState:
    """The state of the run, by the events that its files stand for."""
    planned = {}
    for checkpoint, tasks in run.planned.items():
        for task, items in tasks.items():
            planned[checkpoint, task] = items
    recorded = [
        Recorded(checkpoint=checkpoint, task=task, items=items)
        for (checkpoint, task), items in done.items()
    ]
    state = RunState()
    for event in (Planned(planned, tuple(failures)), *recorded):
        state = advance(state, event, 0.0)
    working = {
        each.engine: EngineState(
            state=each.state, checkpoint=each.checkpoint, task=each.task
        )
        for each in engines
    }
    return replace(state, engines=working)


def _last_engines(run: RunDocument) -> tuple[EngineStatus, ...]:
    """Each engine with its last evaluated checkpoint."""
    last = {row.engine: row for row in rows_as(run.rows, "engine_stats", Served)}
    return tuple(
        EngineStatus(
            engine=row.engine,
            gpu=row.gpu,
            state="ended",
            checkpoint=row.checkpoint,
            idle_share=row.idle_share,
            waiting_share=row.waiting_share,
        )
        for row in last.values()
    )


def _error_line(failure: Failure) -> str:
    names = (failure.checkpoint, failure.task, failure.item)
    where = " ".join(name for name in names if name)
    return f"{where}: {failure.stage}: {one_line(failure.reason)}"


def _seconds_left(
    parts: Sequence[PartStatus], live: Live, history: History
) -> float | None:
    """By the pace of the last minutes, and by the mean of the loads so far for
    engines that will start and load."""
    if not live.items_per_second:
        return None
    items = 0
    waiting = set()
    for part in parts:
        if part.state in ("running", "waiting"):
            items += (part.total or 0) - part.done
        if part.state == "waiting":
            waiting.add(part.checkpoint)
    waiting -= {engine.checkpoint for engine in live.engines}
    loads = len(waiting) * history.load_seconds
    for engine in live.engines:
        if engine.state in ("starting", "starting again", "loading"):
            loads += max(0.0, history.load_seconds - engine.seconds)
    return items / live.items_per_second + loads / max(1, len(live.engines))


def finished_items(records: Path) -> dict[Part, int]:
    """The number of items with records, by checkpoint and task, by the names of their
    parts. Opens no file."""
    found: dict[Part, int] = {}
    # leaves out folders that cannot be read
    for folder, folders, names in os.walk(records, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        place = Path(folder).relative_to(records).parts
        if len(place) != 2:
            continue
        folders.clear()
        items = 0
        for name in names:
            count = name.removesuffix(".parquet").rpartition("-")[2]
            completes = f"-{COMPLETING}" in name  # items of other parts
            if not name.startswith(".") and count.isdecimal() and not completes:
                items += int(count)
        found[place[0], place[1]] = items
    return found


def driver_of(
    run_dir: Path, *, pace: Pace = PACE, sleep: Callable[[float], None] = time.sleep
) -> Driver:
    """Check whether the driver of a run in state "running" still lives."""
    claim = latest_claim(run_dir)
    if claim is None:
        return Driver(name="an unknown process", alive=False, why="its driver is gone")
    name = str(claim.owner or "an unknown process")
    seen: Sight = "elsewhere"
    if claim.released:
        seen = "gone"
    elif claim.owner is not None:
        seen = sight(claim.owner)
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
