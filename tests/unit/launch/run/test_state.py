"""The fold of a run's events, and the bus that makes it."""

import pytest

from evaluator.store.run_json import Failure
from launch.run.events import (
    Advanced,
    Began,
    Completed,
    Died,
    Ended,
    EngineEnded,
    Event,
    GaveUp,
    Loading,
    Made,
    Placed,
    Planned,
    Recorded,
    Retried,
    Starting,
    Unplaced,
    Warned,
)
from launch.run.state import Bus, RunState, advance

DENSE, WANDA = ("dense", "xquad"), ("wanda", "xquad")
PLAN = Planned({DENSE: 40, WANDA: 40})
BEGAN = Began(engine=0, checkpoint="dense", task="xquad", items=40)


def fold(*events: Event, state: RunState | None = None, now: float = 0.0) -> RunState:
    state = RunState() if state is None else state
    for event in events:
        state = advance(state, event, now)
    return state


def _advanced(items: int) -> Advanced:
    return Advanced(engine=0, items=items)


def _gave_up(name: str, task: str = "", stage: str = "load") -> GaveUp:
    return GaveUp(Failure(checkpoint=name, task=task, stage=stage, reason="no"))


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Starting(engine=0), "starting"),
        (Placed(engine=0), "idle"),
        (Unplaced(engine=0), "waiting for a place"),
        (Loading(engine=0, checkpoint="dense"), "loading"),
        (BEGAN, "evaluating"),
        (Ended(engine=0), "idle"),
        (Died(engine=0), "starting again"),
        (EngineEnded(engine=0), "ended"),
    ],
)
def test_engine_state_after_an_event(event, state) -> None:
    """It keeps its GPU, and what it works on only while it does."""
    engine = fold(Placed(engine=0, text="a: 3"), BEGAN, event).engines[0]
    assert (engine.state, engine.gpu) == (
        state,
        "" if event == Placed(engine=0) else "a: 3",
    )
    assert (engine.task is None) == (event != BEGAN)


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ([], ["waiting", "waiting"]),
        ([BEGAN], ["running", "waiting"]),
        ([BEGAN, _advanced(40)], ["done", "waiting"]),
        ([Recorded(checkpoint="dense", task="xquad", items=40)], ["done", "waiting"]),
        ([_gave_up("wanda")], ["waiting", "failed"]),
        ([_gave_up("wanda", "xquad", "evaluate")], ["waiting", "failed"]),
        ([_gave_up("wanda", "tydiqa", "evaluate")], ["waiting", "waiting"]),
        ([_gave_up("wanda", "xquad", "item")], ["waiting", "waiting"]),
        # its records are there, and say that there was no answer
        ([BEGAN, _advanced(40), _gave_up("dense"), Ended(engine=0)], ["failed", "waiting"]),
        ([BEGAN, _gave_up("dense")], ["running", "waiting"]),
        ([_gave_up("truncated"), _gave_up("truncated", "xquad")], ["waiting", "waiting", "failed"]),
        ([Recorded(checkpoint="old", task="xquad", items=3)], ["waiting", "waiting", "waiting"]),
    ],
)  # fmt: skip
def test_state_of_each_part(events, states) -> None:
    state = fold(PLAN, *events)
    assert [part.state for part in state.parts()] == states
    assert sum(state.checkpoints().values()) == len(states)


def test_earlier_failures_count() -> None:
    failures = _gave_up("wanda").failure, _gave_up("dense", "xquad", "item").failure
    state = fold(Planned(PLAN.items, failures))
    assert (state.failures, [*state.lost]) == (2, [("wanda", "")])
    assert state.checkpoints()["failed"] == 1


def test_pace_of_the_last_minutes() -> None:
    state = fold(BEGAN)
    assert state.rate(0.0) is None
    for minute in range(1, 11):
        items = 60 if minute <= 5 else 600
        state = fold(_advanced(items), state=state, now=60.0 * minute)
    assert state.rate(600.0) == pytest.approx(10.0)
    assert (state.items, state.done[DENSE]) == (3300, 3300)


def test_last_errors_and_counts() -> None:
    events = [*(Warned(f"a note\nof {number}") for number in range(9))]
    state = fold(*events, Retried(engine=0), Died(engine=3, text="ActorDiedError"))
    assert state.errors == (
        *(f"a note of {number}" for number in range(5, 9)),
        "engine 3 died (ActorDiedError)",
    )
    assert state.counts == {"warned": 9, "retried": 1, "died": 1}
    assert fold(Made(items=1, total=3)).compressed == (1, 3)


def test_bus_reports_completed_checkpoints() -> None:
    clock = iter(range(0, 100, 10))
    events: list[Event] = []
    bus = Bus(lambda event, _: events.append(event), clock=lambda: float(next(clock)))
    for event in (PLAN, Loading(engine=0, checkpoint="dense"), BEGAN, _advanced(20)):
        bus.report(event)
    assert len(events) == 4
    bus.report(_advanced(20))
    assert events[5:] == [Completed(checkpoint="dense", seconds=30.0)]
