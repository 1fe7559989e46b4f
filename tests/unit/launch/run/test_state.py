"""The fold of a run's events, the bus that makes it, and the log that has them too."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from evaluator.core.errors import ResurfaceError
from evaluator.core.records import EngineStats
from evaluator.store.run_json import Failure
from launch.run.directory import metrics as metrics_module
from launch.run.directory.event_log import EventLog, read_state
from launch.run.directory.metrics import write_metrics
from launch.run.events import (
    Advanced,
    Began,
    Counted,
    Died,
    End,
    Ended,
    Event,
    GaveUp,
    Loaded,
    Loading,
    Made,
    Placed,
    Planned,
    Recorded,
    Refused,
    Retried,
    Started,
    Starting,
    Warned,
    logged_kinds,
)
from launch.run.state import Bus, RunState, advance

DENSE, WANDA = ("dense", "xquad"), ("wanda", "xquad")
PLAN = Planned({"dense": {"xquad": 40}, "wanda": {"xquad": 40}})
BEGAN = Began(engine=0, checkpoint="dense", task="xquad", items=40)


def fold(*events: Event, state: RunState | None = None, now: float = 0.0) -> RunState:
    state = RunState() if state is None else state
    for event in events:
        state = advance(state, event, now)
    return state


def _advanced(items: int) -> Advanced:
    return Advanced(engine=0, checkpoint="dense", task="xquad", items=items)


def _counted(engine: int, tokens: int) -> Counted:
    counted = EngineStats(generated_tokens=tokens)
    named = {"engine": engine, "checkpoint": "dense", "task": "xquad"}
    return Counted(**named, items=20, seconds=1.0, stats=counted)


def _gave_up(name: str, task: str = "", stage: str = "load") -> GaveUp:
    return GaveUp(Failure(checkpoint=name, task=task, stage=stage, reason="no"))


@pytest.mark.parametrize(
    ("events", "states"),
    [
        ([], ["waiting", "waiting"]),
        ([BEGAN], ["running", "waiting"]),
        ([Recorded(checkpoint="dense", task="xquad", items=40)], ["done", "waiting"]),
        ([_gave_up("wanda")], ["waiting", "failed"]),
        ([_gave_up("wanda", "tydiqa", "evaluate")], ["waiting", "waiting"]),
        ([_gave_up("wanda", "xquad", "item")], ["waiting", "waiting"]),
        # its records are there, and say that there was no answer
        ([BEGAN, _advanced(40), _gave_up("dense"), Ended(engine=0)], ["failed", "waiting"]),
        ([_gave_up("truncated"), _gave_up("truncated", "xquad")], ["waiting", "waiting", "failed"]),
    ],
)  # fmt: skip
def test_state_of_each_part(events, states) -> None:
    state = fold(PLAN, *events)
    assert [part.state for part in state.parts()] == states
    assert sum(state.checkpoints().values()) == len(states)


def test_pace_of_the_last_minutes() -> None:
    state = fold(BEGAN)
    assert state.rate(0.0) is None
    for minute in range(1, 11):
        items = 60 if minute <= 5 else 600
        state = fold(_advanced(items), state=state, now=60.0 * minute)
    assert state.rate(600.0) == pytest.approx(10.0)


def test_pace_is_of_one_round_of_a_watched_sweep() -> None:
    """Not of the pause before it."""
    state = fold(BEGAN)
    state = fold(_advanced(40), state=state, now=10.0)
    state = fold(PLAN, BEGAN, state=state, now=250.0)
    state = fold(_advanced(20), state=state, now=260.0)
    assert state.rate(260.0) == 2.0


# ---- logs/events.jsonl and metrics.prom


FIRST_CALL = [
    Started(), PLAN, Recorded(checkpoint="dense", task="xquad", items=3), Starting(engine=0),
    Placed(engine=0, seconds=6.0, text="a: 3"), Loading(engine=0, checkpoint="dense"),
    Loaded(engine=0, checkpoint="dense", seconds=14.0), BEGAN, _advanced(20), Warned("a\nb"), Retried(engine=0),
    Died(engine=0, text="killed"),
]  # fmt: skip
SECOND_CALL = [
    Started("process 7"), Planned(PLAN.items, (_gave_up("wanda").failure,)),
    Loaded(engine=1, checkpoint="wanda", swapped=True, seconds=2.0), BEGAN, _advanced(17), _gave_up("dense"),
    Made(items=1, total=3), Refused("process 8"),
]  # fmt: skip
LOST = [
    '"x"', '{"time": 3}', '{"time": "2026", "event": "died", "call": 1}', "\x00", "[" * 10**5,
    '{"time": "2026-01-01", "event": "placed", "call": 1, "engine": 0, "seconds": NaN}',
    '{"time": "9999-12-31T23:59-14:00", "event": "started", "call": 1}',
]  # fmt: skip


def _log(run: Path) -> Path:
    return run / "logs" / "events.jsonl"


def _called(run: Path, events: Iterable[Event], start: float) -> Bus:
    """A call of the command, with an event each ten seconds."""
    log = EventLog(run)
    times = iter(start + 10.0 * number + 1 / 7 for number in range(100))
    bus = Bus(log.on, clock=lambda: next(times))
    bus.state = read_state(run)
    (run / "run.json").touch()
    for event in events:
        bus.report(event)
    return bus


def test_log_has_the_state_of_all_calls(tmp_path: Path) -> None:
    """The driver's own state, although the first was killed."""
    first = _called(tmp_path, FIRST_CALL, 1.8e9)
    assert read_state(tmp_path) == first.state
    with _log(tmp_path).open("a") as log:
        log.write("\n".join([*LOST, '{"time": "half a l']))
    state = _called(tmp_path, SECOND_CALL, 1.9e9).state
    first.report(_advanced(20))  # it was only paused, and has lost the run
    assert read_state(tmp_path) == state
    assert (state.first, state.seconds) == (
        first.state.first,
        110 + 80,
    )  # with what the bus adds
    assert state.load_seconds == (6 + 14 + 2) / 2
    assert (state.counts["started"], state.counts["died"]) == (2, 1)
    assert (state.done[DENSE], state.planned[DENSE]) == (40, 40)
    lost = [(each.checkpoint, each.task) for each in state.failures]
    assert lost == [("wanda", ""), ("dense", "")]
    assert {number: each.state for number, each in state.engines.items()} == {
        0: "evaluating"
    }


def test_every_event_is_documented() -> None:
    page = (Path(__file__).parents[4] / "docs" / "runs.md").read_text(encoding="utf-8")
    table = page.split("## Events")[1].split("## ")[0]
    named: list[str] = []
    for line in table.splitlines():
        if line.startswith("| `"):
            named += [name.strip(" `") for name in line.split("|")[1].split(",")]
    assert sorted(named) == sorted(each.kind for each in logged_kinds(Event))


def _samples(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text().splitlines():
        if not line.startswith("# "):
            name, value = line.removeprefix("resurface_").split(" ")
            yield name, value


def test_metrics_of_all_calls(tmp_path: Path) -> None:
    _called(tmp_path, [*FIRST_CALL, _counted(0, 100)], 1.8e9)
    bus = _called(tmp_path, [*SECOND_CALL, _counted(1, 11)], 1.9e9)
    write_metrics(tmp_path, bus.state)
    found = dict(_samples(tmp_path / "metrics.prom"))
    expected: dict[str, Any] = {
        "items_done": 40, "items_planned": 80, "failures": 2, 'checkpoints{state="failed"}': 2, "engines_alive": 1,
        "engine_deaths": 1, "retries": 1, 'tokens{kind="generated"}': 111, "seconds": 210.0, "calls": 2,
        'state{state="running"}': 1, 'state{state="failed"}': 0,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == {
        name: str(value) for name, value in expected.items()
    }
    write_metrics(tmp_path, fold(End("failed"), state=bus.state))
    found = dict(_samples(tmp_path / "metrics.prom"))
    assert (found["engines_alive"], found['state{state="failed"}']) == ("0", "1")


def test_metrics_need_no_disk(tmp_path, monkeypatch) -> None:
    """Another driver's fence ends the run all the same."""
    written = Mock(side_effect=[OSError("broken"), ResurfaceError("taken over")])
    monkeypatch.setattr(metrics_module, "write_atomically", written)
    write_metrics(tmp_path, RunState())
    with pytest.raises(ResurfaceError, match="taken over"):
        write_metrics(tmp_path, RunState())
