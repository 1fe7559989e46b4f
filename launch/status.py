"""The progress of a run, read from its files alone, without Ray or the driver's
process.

`logs/events.jsonl` tells all that happened, and `advance` makes the state of it, as in
the driver. `run.json` has the run's own state, and the lease shows whether the driver
lives.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError

from evaluator.core.config import validated
from evaluator.core.errors import InputError, Json, one_line
from evaluator.core.lease import PACE, beat_file, beat_of, claims
from evaluator.core.liveness import Pace, sight
from evaluator.core.records import EngineStats
from evaluator.store.cells import Cells
from evaluator.store.run_json import (
    Served,
    gpu_hours,
    no_run,
    price_of_hour,
    read_run,
    rows_as,
)
from launch.run.directory.event_log import read_state
from launch.run.state import PartState, PartStatus, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The process that writes the run."""

    name: str
    alive: bool
    why: str = ""  # the reason for taking it for dead


class LastGate(BaseModel):
    """Of RUN/gate.json."""

    verdict: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the events of a run tell of all its calls."""

    began: str | None = None  # ISO 8601, UTC
    seconds: float = 0.0  # of all calls together
    counts: Mapping[str, int] = field(default_factory=dict)  # of events, by kind
    # the mean of an engine's loads, with its processes' starts
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine's current work, and its waiting time on the previous checkpoint."""

    engine: int
    # "node-a: 3 (1/2)": it has half of the third GPU there; "": none, or unknown
    gpu: str
    state: str
    checkpoint: str | None
    task: str | None = None
    items: int = 0
    done: int = 0
    seconds: float = 0.0
    idle_share: float | None = None
    waiting_share: float | None = None


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
    unused_bytes: int = 0  # of records that no cell of the sweep uses
    gate: LastGate | None = None
    gpu_hours: float = 0.0  # of all engines at work, without starts and loads
    cost: float | None = None  # with resources.price_per_gpu_hour

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
    run = validated(RunDocument, read_run(run_dir), str(file))
    state = read_state(run_dir)
    if run.state.startswith("finished"):  # but for its report
        if state.working:
            run.state = "running"
        elif state.end is not None and state.end.state == "failed":
            run.state, run.error = "failed", state.end.text
    driver = driver_of(run_dir, sleep=sleep) if run.state == "running" else None
    found = summarise(str(run_dir), run, state, driver, time.time())
    with suppress(OSError, InputError):
        unused = sum(Cells(run_dir).unused().values())
        found = replace(found, unused_bytes=unused)
    with suppress(OSError, ValidationError):
        gate = (run_dir / "gate.json").read_bytes()
        return replace(found, gate=LastGate.model_validate_json(gate))
    return found


class RunDocument(BaseModel, extra="allow"):
    """The fields of run.json that tell how a run stands."""

    state: str = "unknown"
    error: str | None = None

    @property
    def rows(self) -> Json:
        """The other fields."""
        return self.model_extra or {}


def summarise(
    name: str, run: RunDocument, state: RunState, driver: Driver | None, now: float
) -> RunStatus:
    """Combine the contents of the files. Pure."""
    status, why = run.state, run.error or ""
    running = driver is not None and driver.alive
    if not running:
        state = state.ended
    if driver is not None and not running:
        status, why = "stale", f"{driver.why}; the same command resumes"
    now = max(now, state.now)  # the driver's clock may be ahead
    parts = tuple(state.parts())
    totals = [part.total for part in parts]
    served = rows_as(run.rows, "engine_stats", Served)
    hours, price = gpu_hours(served, served), price_of_hour(run.rows)
    made, to_make = state.compressed or (None, None)
    began = None
    if state.first is not None:
        began = datetime.fromtimestamp(state.first, UTC).isoformat(timespec="seconds")
    return RunStatus(
        run=name,
        state=status,
        why=one_line(why, 500) if why else "",
        driver=None if driver is None else driver.name,
        done=sum(part.done for part in parts),
        total=None if None in totals else sum(filter(None, totals)),
        checkpoints=len({part.checkpoint for part in parts}),
        items_per_second=state.rate(now),
        seconds_left=_seconds_left(state, parts, now),
        history=History(
            began=began,
            seconds=round(state.seconds, 3),
            counts=dict(state.counts),
            load_seconds=state.load_seconds,
        ),
        pruned=made,
        to_prune=to_make,
        parts=parts,
        engines=_engines(run, state, now),
        errors=state.errors,
        gpu_hours=hours,
        cost=hours * price if hours and price is not None else None,
    )


def _engines(run: RunDocument, state: RunState, now: float) -> tuple[EngineStatus, ...]:
    """The shares of each are those of its last checkpoint, whose tasks overlap."""
    last: dict[int, tuple[str, EngineStats]] = {}
    for row in rows_as(run.rows, "engine_stats", Served):
        name, counted = last.get(row.engine, ("", EngineStats()))
        if name != row.checkpoint:
            counted = EngineStats()
        last[row.engine] = row.checkpoint, counted.plus(row)
    found = []
    for number, engine in sorted(state.engines.items()):
        _, counted = last.get(number, ("", EngineStats()))
        shares: Json = counted.shares()
        each = EngineStatus(
            engine=number,
            gpu=engine.gpu,
            state=engine.state,
            checkpoint=engine.checkpoint,
            task=engine.task,
            items=engine.items,
            done=engine.done,
            seconds=round(now - engine.since, 1) if engine.since else 0.0,
            **shares,
        )
        found.append(each)
    return tuple(found)


def _seconds_left(
    state: RunState, parts: tuple[PartStatus, ...], now: float
) -> float | None:
    """By the pace of the last minutes, and by the mean of the loads so far for
    engines that will start and load."""
    pace, engines = state.rate(now), state.engines.values()
    if not pace or any(part.total is None for part in parts):
        return None
    items = 0
    waiting = set()
    for part in parts:
        if part.state in ("running", "waiting"):
            items += (part.total or 0) - part.done
        if part.state == "waiting":
            waiting.add(part.checkpoint)
    waiting -= {engine.checkpoint for engine in engines}
    loads = len(waiting) * state.load_seconds
    for engine in engines:
        if engine.state in ("starting", "starting again", "loading"):
            loads += max(0.0, state.load_seconds - (now - engine.since))
    return items / pace + loads / max(1, len(engines))


def driver_of(
    run_dir: Path, *, pace: Pace = PACE, sleep: Callable[[float], None] = time.sleep
) -> Driver:
    """Check whether the driver of a run in state "running" still lives."""
    claim = next(reversed(claims(run_dir)), None)
    if claim is None:
        return Driver(name="an unknown process", alive=False, why="its driver is gone")
    name, seen = str(claim), sight(claim)
    if seen == "running":
        return Driver(name=name, alive=True)
    if seen in ("gone", "stopped"):
        return Driver(name=name, alive=False, why=f"its driver ({name}) is {seen}")
    alive = False
    with suppress(OSError):
        beaten = beat_file(run_dir, claim).stat().st_mtime
        alive = abs(time.time() - beaten) <= pace.silence
    first, tries = beat_of(run_dir, claim), 0
    while not alive and tries < 5:
        tries += 1
        sleep(pace.beat_seconds / 2)
        alive = beat_of(run_dir, claim) != first
    return Driver(name=name, alive=alive, why=f"no sign of life of its driver ({name})")
