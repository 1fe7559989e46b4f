"""What a run says of itself while it works, by a clock of the test's."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from evaluator.core.errors import InputError, ResurfaceError
from launch.run.directory import live
from launch.run.directory.live import Both, LiveState


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(tmp_path: Path, clock: Clock) -> LiveState:
    return LiveState(tmp_path, clock=clock)


def test_what_engines_do(state: LiveState, clock: Clock) -> None:
    state.loading(1, "wanda-0.5")
    state.loading(0, "dense")
    clock.now = 10.0
    state.began(0, "dense", "xquad", 40)
    clock.now = 20.0
    state.advanced(0, 20)
    state.unplaced(2, 4)
    clock.now = 25.0
    document = state.document([{"engine": 0, "idle_share": 0.1, "waiting_share": 0.2, "checkpoint": "before"}])
    assert [each["state"] for each in document["engines"]] == ["evaluating", "loading", "waiting for a place"]
    assert document["engines"][0] == {
        "engine": 0,
        "state": "evaluating",
        "seconds": 15.0,
        "checkpoint": "dense",
        "task": "xquad",
        "items": 40,
        "done": 20,
        "idle_share": 0.1,
        "waiting_share": 0.2,
    }
    assert document["items"] == 20
    assert document["items_per_second"] == 20 / 15
    state.ended(0)
    assert state.document([])["engines"][0]["state"] == "idle"
    state.left(1)
    assert state.document([])["engines"][1]["state"] == "ended"


def test_the_pace_is_that_of_the_last_minutes(state: LiveState, clock: Clock) -> None:
    assert state.document([])["items_per_second"] is None
    state.began(0, "dense", "xquad", 10_000)
    assert state.document([])["items_per_second"] is None
    for minute in range(1, 11):
        clock.now = 60.0 * minute
        state.advanced(0, 60 if minute <= 5 else 600)
    assert state.document([])["items_per_second"] == pytest.approx(10.0)


def test_the_last_errors_are_kept(state: LiveState) -> None:
    for number in range(9):
        state.warned(f"a note\nof {number}")
    state.died(3, "ActorDiedError")
    document = state.document([])
    assert document["errors"] == [*(f"a note of {number}" for number in range(5, 9)), "engine 3 died (ActorDiedError)"]
    assert document["engines"][0]["state"] == "starting again"


def test_pruning(state: LiveState) -> None:
    state.pruning(0, 0)
    assert state.document([])["pruning"] is None
    state.pruning(1, 3)
    assert state.document([])["pruning"] == {"done": 1, "total": 3}


def test_it_is_written_now_and_then(state: LiveState, clock: Clock, tmp_path: Path) -> None:
    file = tmp_path / "live.json"
    written = []
    for clock.now in (0.0, 1.0, 2.9, 3.0, 3.1, 7.0):
        file.unlink(missing_ok=True)
        state.look(list)
        if file.exists():
            written.append(json.loads(file.read_text())["seconds"])
    assert written == [0.0, 3.0, 7.0]


@pytest.mark.parametrize("error", [InputError("no space left"), OSError(errno.EIO, "broken")])
def test_a_file_that_cannot_be_written_ends_no_run(
    state: LiveState, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(live, "write_atomically", fail)
    state.look(list)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_lost_does(state: LiveState, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ResurfaceError("taken over")

    monkeypatch.setattr(live, "write_atomically", fail)
    with pytest.raises(ResurfaceError, match="taken over"):
        state.look(list)


def test_two_reporters_hear_the_same(tmp_path: Path, clock: Clock) -> None:
    states = [LiveState(tmp_path, clock=clock) for _ in range(2)]
    both = Both(*states)
    both.loading(0, "dense")
    both.loaded(0, "dense", True, 1.0)
    both.began(0, "dense", "xquad", 4)
    clock.now = 1.0
    both.advanced(0, 2)
    both.ended(0)
    both.unplaced(1, 2)
    both.died(2, "gone")
    both.left(3)
    both.warned("a note")
    first, second = (each.document([]) for each in states)
    assert first == second
    assert [each["state"] for each in first["engines"]] == ["idle", "waiting for a place", "starting again", "ended"]
    assert first["errors"] == ["engine 2 died (gone)", "a note"]
