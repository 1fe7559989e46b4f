"""What a run is doing: a fold of its events.

    state = advance(RunState(), Planned({("dense", "xquad"): 40}), now=0.0)
    state = advance(state, Began(engine=0, checkpoint="dense", task="xquad", items=40), now=1.0)

Driver, progress lines, `status`, trackers and metrics.prom read it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from evaluator.core.errors import one_line
from evaluator.store.run_json import Failure
from launch.run import events
from launch.run.events import Event, OfEngine, Part

PartState = Literal["done", "running", "failed", "waiting", "decided early"]
_WINDOW_SECONDS = 300.0  # for the measured pace
ERRORS = 5  # the last ones
# an engine's state after an event without a checkpoint
_STATES: Mapping[type[Event], str] = {
    events.Starting: "starting",
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

    started: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)  # of events, by kind
    planned: Mapping[Part, int] = field(default_factory=dict)
    done: Mapping[Part, int] = field(default_factory=dict)
    early: frozenset[Part] = frozenset()  # decided by the gate
    lost: Mapping[Part, Failure] = field(default_factory=dict)  # given up, as `Failure`
    failures: int = 0
    engines: Mapping[int, EngineState] = field(default_factory=dict)
    compressed: tuple[int, int] | None = None  # checkpoints made, of all
    items: int = 0  # finished in this call
    # time, finished items at that time
    pace: tuple[tuple[float, int], ...] = ()
    began: Mapping[str, float] = field(
        default_factory=dict
    )  # a checkpoint's first load
    errors: tuple[str, ...] = ()

    def is_complete(self, checkpoint: str) -> bool:
        """Whether all items of a checkpoint are done; one without tasks has none."""
        parts = [part for part in self.planned if part[0] == checkpoint]
        return bool(self.planned) and all(map(self.is_done, parts))

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
        busy = {each.part for each in self.engines.values()}
        found = []
        for part in dict.fromkeys([*self.planned, *self.done]):
            done, total = self.done.get(part, 0), self.planned.get(part)
            complete = self.is_done(part)
            state: PartState = "done" if complete else "waiting"
            if part in self.early:
                state = "decided early"
            elif part in busy and not complete:
                state = "running"
            elif part in self.lost or (part[0], "") in self.lost:
                state = "failed"  # also if all its records exist
            found.append(
                PartStatus(
                    checkpoint=part[0],
                    task=part[1],
                    state=state,
                    done=done,
                    total=total,
                )
            )
        known = {part.checkpoint for part in found}
        unusable = dict.fromkeys(name for name, _ in self.lost if name not in known)
        return found + [
            PartStatus(checkpoint=name, task="", state="failed", done=0, total=0)
            for name in unusable
        ]

    def checkpoints(self) -> Counter[str]:
        """The number of checkpoints in each state."""
        by_name: dict[str, set[PartState]] = {}
        for part in self.parts():
            by_name.setdefault(part.checkpoint, set()).add(part.state)
        states = Counter(done=0, running=0, waiting=0, failed=0)
        for found in by_name.values():
            order = [each for each in ("running", "failed", "waiting") if each in found]
            states[order[0] if order else "done"] += 1
        return states


def advance(state: RunState, event: Event, now: float) -> RunState:
    """The state after an event."""
    state = replace(state, counts=state.counts + Counter([event.kind]))
    match event:
        case events.Planned():
            state = replace(state, started=now, planned=event.items)
            for failure in event.failures:
                state = _give_up(state, events.GaveUp(failure))
        case events.Recorded():
            done = {**state.done, (event.checkpoint, event.task): event.items}
            return replace(state, done=done)
        case events.Decided():
            part = event.checkpoint, event.task
            total = max(event.items, state.done.get(part, 0))
            planned = {**state.planned, part: total}
            return replace(state, planned=planned, early=state.early | {part})
        case events.GaveUp():
            return _give_up(state, event)
        case events.Made():
            compressed = (event.items, event.total) if event.total else None
            return replace(state, compressed=compressed)
        case events.Warned() | events.Retried() if event.text:
            return _with_error(state, event.text)
        case OfEngine():
            return _of_engine(state, event, now)
    return state


def _give_up(state: RunState, event: events.GaveUp) -> RunState:
    failure = event.failure
    lost = dict(state.lost)
    if failure.lost:
        lost[failure.checkpoint, failure.task] = failure
    return replace(state, failures=state.failures + 1, lost=lost)


def _with_error(state: RunState, text: str) -> RunState:
    return replace(state, errors=(*state.errors, one_line(text))[-ERRORS:])


def _of_engine(state: RunState, event: OfEngine, now: float) -> RunState:
    engine = state.engines.get(event.engine, EngineState(state=""))
    gpu = event.text if isinstance(event, events.Placed) else engine.gpu
    match event:
        case events.Loading(checkpoint=name):
            engine = EngineState(state="loading", since=now, gpu=gpu, checkpoint=name)
            state = replace(state, began={name: now, **state.began})
        case events.Began():
            engine = EngineState(
                state="evaluating",
                since=now,
                gpu=gpu,
                checkpoint=event.checkpoint,
                task=event.task,
                items=event.items,
            )
            state = replace(state, pace=state.pace or ((now, 0),))
        case events.Advanced():
            engine = replace(engine, done=engine.done + event.items)
            state = _advanced(state, engine, event.items, now)
        case events.Loaded():
            return state
        case _:
            engine = EngineState(state=_STATES[type(event)], since=now, gpu=gpu)
    if isinstance(event, events.Died):
        state = _with_error(state, f"engine {event.engine} died ({event.text})")
    return replace(state, engines={**state.engines, event.engine: engine})


def _advanced(state: RunState, engine: EngineState, items: int, now: float) -> RunState:
    done = {**state.done, engine.part: state.done.get(engine.part, 0) + items}
    total = state.items + items
    pace = (*state.pace, (now, total))
    old = 0
    while len(pace) - old > 2 and pace[old + 1][0] <= now - _WINDOW_SECONDS:
        old += 1
    return replace(state, done=done, items=total, pace=pace[old:])
