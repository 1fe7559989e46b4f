"""What a run says of itself while it works, by a clock of the test's."""

import contextlib
import errno
import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from evaluator.core.errors import InputError, ResurfaceError
from launch.run.decide.assignments import Event
from launch.run.directory import live
from launch.run.directory.live import LiveState
from launch.run.directory.metrics import Plan


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


@pytest.fixture
def state(tmp_path: Path, clock: SimpleNamespace) -> LiveState:
    return LiveState(tmp_path, Plan(), clock=lambda: clock.now)


def test_what_engines_and_prune_jobs_do(state: LiveState, clock: SimpleNamespace) -> None:
    state.on(Event(kind="placed", engine=0, text="a: 3 (1/2)"))
    state.on(Event(kind="loading", engine=1, checkpoint="wanda-0.5"))
    state.on(Event(kind="loading", engine=0, checkpoint="dense"))
    clock.now = 10.0
    state.on(Event(kind="began", engine=0, checkpoint="dense", task="xquad", items=40))
    clock.now = 20.0
    state.on(Event(kind="advanced", engine=0, items=20))
    state.on(Event(kind="unplaced", engine=2, text="4 free GPUs on one node"))
    clock.now = 25.0
    document = state.document([{"engine": 0, "idle_share": 0.1, "waiting_share": 0.2, "checkpoint": "before"}])
    assert [each["state"] for each in document["engines"]] == ["evaluating", "loading", "waiting for a place"]
    at = {"checkpoint": "dense", "task": "xquad", "items": 40, "done": 20, "idle_share": 0.1, "waiting_share": 0.2}
    assert document["engines"][0] == {"engine": 0, "gpu": "a: 3 (1/2)", "state": "evaluating", "seconds": 15.0, **at}
    assert document["items"] == 20
    assert document["items_per_second"] == 20 / 15
    state.on(Event(kind="ended", engine=0))
    assert state.document([])["engines"][0]["state"] == "idle"
    state.on(Event(kind="left", engine=1))
    assert state.document([])["engines"][1]["state"] == "ended"
    state.on(Event(kind="made", items=0, total=0))
    assert state.document([])["pruning"] is None
    state.on(Event(kind="made", items=1, total=3))
    assert state.document([])["pruning"] == {"done": 1, "total": 3}


def test_the_pace_is_that_of_the_last_minutes(state: LiveState, clock: SimpleNamespace) -> None:
    assert state.document([])["items_per_second"] is None
    state.on(Event(kind="began", engine=0, checkpoint="dense", task="xquad", items=10000))
    assert state.document([])["items_per_second"] is None
    for minute in range(1, 11):
        clock.now = 60.0 * minute
        state.on(Event(kind="advanced", engine=0, items=60 if minute <= 5 else 600))
    assert state.document([])["items_per_second"] == pytest.approx(10.0)


def test_the_last_errors_are_kept(state: LiveState) -> None:
    for number in range(9):
        state.on(Event(kind="warned", text=f"a note\nof {number}"))
    state.on(Event(kind="died", engine=3, text="ActorDiedError"))
    document = state.document([])
    assert document["errors"] == [*(f"a note of {number}" for number in range(5, 9)), "engine 3 died (ActorDiedError)"]
    assert document["engines"][0]["state"] == "starting again"


def test_it_is_written_now_and_then(state: LiveState, clock: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "live.json"
    written = []
    for clock.now in (0.0, 1.0, 2.9, 3.0, 3.1, 7.0):
        file.unlink(missing_ok=True)
        state.look(list)
        if file.exists():
            written.append(json.loads(file.read_text())["seconds"])
    assert written == [0.0, 3.0, 7.0]


@pytest.mark.parametrize(
    "error", [InputError("no space left"), OSError(errno.EIO, "broken"), ResurfaceError("taken over")]
)
def test_only_the_loss_of_the_directory_ends_the_run(state: LiveState, monkeypatch, error: Exception) -> None:
    monkeypatch.setattr(live, "write_atomically", Mock(side_effect=error))
    ends = isinstance(error, ResurfaceError) and not isinstance(error, InputError)
    with pytest.raises(ResurfaceError, match="taken over") if ends else contextlib.nullcontext():
        state.look(list)
