"""What a run is doing: a fold of its events, and the bus that makes it.

    state = advance(RunState(), Planned({"dense": {"xquad": 40}}), now=0.0)
    state = advance(state, Began(engine=0, checkpoint="dense", task="xquad", items=40), now=1.0)

Driver, progress lines, trackers and metrics.prom read it. `status` folds the same
events from `logs/events.jsonl`. `advance` is pure.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from evaluator.core.errors import Json, one_line
from evaluator.store.run_json import Failure, Served
from launch.run import attempts, events
from launch.run.events import Advanced, Completed, Event, OfEngine, Part

PartState = Literal["done", "running", "failed", "waiting"]
_WINDOW_SECONDS = 300.0  # for the measured pace
_PACE_SECONDS = 1.0  # between two of its points
ERRORS = 5  # the last ones
# an engine's state after an event without a task
_STATES: Mapping[type[Event], str] = {
    events.Starting: "starting",
    events.Loading: "loading",
    events.Placed: "idle",
    events.Ended: "idle",
    events.Unplaced: "waiting for a place",
    events.Died: "starting again",
    events.EngineEnded: "ended",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    state: str
    since: float = 0.0
    gpu: str = ""  # as in `Placed`
    checkpoint: str | None = None
    task: str | None = None
    items: int = 0  # of this turn
    done: int = 0

    @property
    def part(self) -> Part:
        return self.checkpoint or "", self.task or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    checkpoint: str
    task: str  # "": a whole checkpoint, set aside before its first question
    state: PartState
    done: int  # items with their records on disk
    total: int | None  # None: not planned in this call


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Times are those of the clock that `advance` is called with."""

    # of all calls
    first: float | None = None  # event
    now: float = 0.0  # the last event
    counts: Counter[str] = field(default_factory=Counter)  # of events, by kind
    earlier: float = 0.0  # seconds of the calls before this one
    loading: float = 0.0  # seconds of engines' starts and loads
    planned: Mapping[Part, int] = field(default_factory=dict)
    done: Mapping[Part, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()  # that still hold
    attempts: attempts.Log = ()
    reused: tuple[Json, ...] = ()  # rows of run.json
    # by the number of a load, checkpoint and task: those of equal weights share a load
    served: Mapping[tuple[int, str, str], Served] = field(default_factory=dict)
    measured: float | None = None  # when that grew last
    # of the last call
    started: float = 0.0
    working: bool = False  # until its event `end`, which a killed one never has
    end: events.Evaluated | None = None  # that event, or that of the work
    # by engine, its last load: the number of that, and what its rows have of it
    loads: Mapping[int, tuple[int, Served]] = field(default_factory=dict)
    engines: Mapping[int, EngineState] = field(default_factory=dict)
    compressed: tuple[int, int] | None = None  # checkpoints made, of all
    items: int = 0  # finished in this call
    # time, finished items at that time
    pace: tuple[tuple[float, int], ...] = ()
    began: Mapping[str, float] = field(
        default_factory=dict
    )  # a checkpoint's first load
    errors: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of all calls, up to the last event."""
        return self.earlier + max(0.0, self.now - self.started)

    @property
    def load_seconds(self) -> float:
        """The mean of an engine's loads, with its processes' starts."""
        return self.loading / max(1, self.counts["loaded"])

    @property
    def ended(self) -> RunState:
        """The state without a driver."""
        engines = {
            number: EngineState(state="ended", gpu=each.gpu, checkpoint=each.checkpoint)
            for number, each in self.engines.items()
        }
        return replace(self, engines=engines, pace=(), compressed=None)

    @property
    def run(self) -> events.State:
        return self.end.state if self.end else "running"

    @property
    def document(self) -> Json:
        """What run.json has of the course of the run."""
        rows = self.served.values()
        able = {row.checkpoint: row.abilities for row in rows}
        engines = [
            {"checkpoint": name, "abilities": found}
            for name, found in able.items()
            if found
        ]
        found: Json = {
            "state": self.run,
            "engine_stats": [row.row for row in rows],
            "failures": [each.row for each in self.failures],
            "reused": self.reused,
        }
        if self.end and self.run == "failed":
            found["error"] = self.end.text
        if self.measured is not None:
            measured = datetime.fromtimestamp(self.measured, UTC)
            found["measured"] = measured.isoformat(timespec="minutes")
        return found | ({"engines": engines} if engines else {})

    @property
    def lost(self) -> Mapping[Part, None]:
        """What was given up: a checkpoint without a task as a whole."""
        lost = [each for each in self.failures if each.lost]
        return dict.fromkeys((each.checkpoint, each.task) for each in lost)

    def incomplete(self) -> set[str]:
        """The checkpoints that have items left; one without tasks has none."""
        return {part[0] for part in self.planned if not self.is_done(part)}

    def is_done(self, part: Part) -> bool:
        return part in self.planned and self.done.get(part, 0) >= self.planned[part]

    def rate(self, now: float) -> float | None:
        """Items a second in the last minutes; None before the first shard."""
        if len(self.pace) < 2 or now <= self.pace[0][0]:
            return None
        return (self.pace[-1][1] - self.pace[0][1]) / (now - self.pace[0][0])

    def parts(self) -> list[PartStatus]:
        """Planned parts first, then parts with records only, then checkpoints without
        a plan: they were unusable when the run began."""
        known, lost = dict.fromkeys([*self.planned, *self.done]), self.lost
        rows = [
            PartStatus(
                checkpoint=part[0],
                task=part[1],
                state=self._state_of(part, lost),
                done=self.done.get(part, 0),
                total=self.planned.get(part),
            )
            for part in known
        ]
        for name in dict.fromkeys(name for name, _ in lost):
            if name not in {checkpoint for checkpoint, _ in known}:
                row = PartStatus(
                    checkpoint=name, task="", state="failed", done=0, total=0
                )
                rows.append(row)
        return rows

    def _state_of(self, part: Part, lost: Container[Part]) -> PartState:
        complete = self.is_done(part)
        if not complete and any(part == each.part for each in self.engines.values()):
            return "running"
        if part in lost or (part[0], "") in lost:
            return "failed"  # also if all its records exist
        return "done" if complete else "waiting"

    def checkpoints(self) -> Counter[str]:
        """The number of checkpoints in each state."""
        by_name: dict[str, set[PartState]] = {}
        for part in self.parts():
            by_name.setdefault(part.checkpoint, set()).add(part.state)
        counts = Counter(done=0, running=0, waiting=0, failed=0)
        for states in by_name.values():
            for state in ("running", "failed", "waiting", "done"):
                if state in states or state == "done":
                    counts[state] += 1
                    break
        return counts


def advance(state: RunState, event: Event, now: float) -> RunState:
    """The state after an event."""
    counts = state.counts.copy()
    counts[event.kind] += 1
    first = now if state.first is None else state.first
    earlier, log = state.seconds, attempts.after(state.attempts, event)
    state = replace(state, counts=counts, first=first, now=now, attempts=log)
    match event:
        case events.Started():
            state = RunState(
                first=first,
                now=now,
                counts=counts,
                earlier=earlier,
                loading=state.loading,
                planned=state.planned,
                done=state.done,
                failures=state.failures,
                attempts=log,
                reused=state.reused,
                served=state.served,
                measured=state.measured,
                started=now,
                working=True,
            )
        case events.End():
            state = replace(state.ended, working=False, end=event)
        case events.Evaluated():
            state = replace(state, end=event)
        case events.Reused():
            state = replace(state, reused=(*state.reused, event.row()))
        case events.Counted():
            state = _counted(state, event, now)
        case events.Planned():
            state = _planned(state, event)
        case events.GaveUp():
            state = _with_failure(state, event.failure)
        case events.Recorded():
            done = {**state.done, (event.checkpoint, event.task): event.items}
            state = replace(state, done=done)
        case events.Made() if event.total:
            state = replace(state, compressed=(event.items, event.total))
        case events.Warned() | events.Retried() if event.text:
            state = _with_error(state, event.text)
        case OfEngine():
            state = _of_engine(state, event, now)
    return state


def _with_failure(state: RunState, failure: Failure) -> RunState:
    names = (failure.checkpoint, failure.task, failure.item)
    where = " ".join(name for name in names if name)
    state = _with_error(state, f"{where}: {failure.stage}: {failure.reason}")
    return replace(state, failures=(*state.failures, failure))


def _with_error(state: RunState, text: str) -> RunState:
    return replace(state, errors=(*state.errors, one_line(text))[-ERRORS:])


def _planned(state: RunState, event: events.Planned) -> RunState:
    planned = {
        (checkpoint, task): items
        for checkpoint, tasks in event.items.items()
        for task, items in tasks.items()
    }
    done = {part: items for part, items in state.done.items() if part in planned}
    given_up = {name for name, _ in state.lost}
    # a watched sweep plans again, after a pause
    fresh = replace(state, failures=(), pace=(), end=None)
    state = replace(fresh, planned=planned, done=done)
    log = attempts.resumed(state.attempts, state.incomplete() - given_up)
    state = replace(state, attempts=log)
    for failure in event.failures:
        state = _with_failure(state, failure)
    return state


def _counted(state: RunState, event: events.Counted, now: float) -> RunState:
    load, row = state.loads[event.engine]
    key = load, event.checkpoint, event.task
    row = state.served.get(key, row).plus(event.stats)
    row = replace(
        row,
        checkpoint=event.checkpoint,
        task=event.task,
        items=(row.items or 0) + event.items,
        seconds=round(row.spent + event.seconds, 3),
    )
    return replace(state, served={**state.served, key: row}, measured=now)


def _of_engine(state: RunState, event: OfEngine, now: float) -> RunState:
    engine = state.engines.get(event.engine, EngineState(state=""))
    if isinstance(event, events.Placed | events.Loaded):
        state = replace(state, loading=state.loading + event.seconds)
    match event:
        case events.Loaded():
            load = state.counts["loaded"], event.served
            return replace(state, loads={**state.loads, event.engine: load})
        case Advanced():
            part = event.checkpoint, event.task
            if part == engine.part:
                engine = replace(engine, done=engine.done + event.items)
            state = _advanced(state, part, event.items, now)
        case events.Ended() if (event.checkpoint, event.task) != engine.part:
            return state  # a task in between
        case events.Began():
            engine = EngineState(
                state="evaluating",
                since=now,
                gpu=engine.gpu,
                checkpoint=event.checkpoint,
                task=event.task,
                items=event.items,
            )
            state = replace(state, pace=state.pace or ((now, state.items),))
        case _:
            gpu = event.text if isinstance(event, events.Placed) else engine.gpu
            name = None
            if isinstance(event, events.Ended | events.EngineEnded):
                name = engine.checkpoint  # which it still holds, or held last
            if isinstance(event, events.Loading):
                name = event.checkpoint
            engine = EngineState(
                state=_STATES[type(event)], since=now, gpu=gpu, checkpoint=name
            )
            if isinstance(event, events.Loading):
                began = {event.checkpoint: now, **state.began}
                state = replace(state, began=began)
            if isinstance(event, events.Died):
                died = f"engine {event.engine} died ({event.text})"
                state = _with_error(state, died)
    return replace(state, engines={**state.engines, event.engine: engine})


def _advanced(state: RunState, part: Part, items: int, now: float) -> RunState:
    done = {**state.done, part: state.done.get(part, 0) + items}
    total = state.items + items
    pace = state.pace
    if len(pace) > 1 and now - pace[-2][0] < _PACE_SECONDS:
        pace = pace[:-1]  # a hundred engines store many shards in a second
    pace = (*pace, (now, total))
    while len(pace) > 2 and pace[1][0] <= now - _WINDOW_SECONDS:
        pace = pace[1:]
    return replace(state, done=done, items=total, pace=pace)


Listener = Callable[[Event, RunState], None]


class Bus:
    """Each event advances the state, and all listeners get both, in the thread that
    reports. Thread-safe."""

    def __init__(
        self, *listeners: Listener, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.listeners = list(listeners)
        self.clock = clock
        self.state = RunState()
        self._lock = threading.Lock()

    def report(self, event: Event) -> None:
        now = round(self.clock(), 3)  # as the log has it
        with self._lock:
            self.state = state = advance(self.state, event, now)
        for listener in list(self.listeners):
            listener(event, state)
        if not isinstance(event, Advanced):
            return
        part = name, _ = event.checkpoint, event.task
        if state.is_done(part) and name not in state.incomplete():
            seconds = now - state.began.get(name, state.started)
            self.report(Completed(checkpoint=name, seconds=round(seconds, 3)))
