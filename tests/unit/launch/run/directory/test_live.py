"""What a run says of itself while it works, in live.json, metrics.prom and
events.jsonl."""

import contextlib
import errno
import json
import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import get_args
from unittest.mock import Mock

import pytest

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.store.run_json import Served
from launch.run.decide.assignments import Event, Kind
from launch.run.directory import live
from launch.run.directory.events import UNLOGGED, EventLog, History, read_history
from launch.run.directory.live import LiveState, Plan


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


@pytest.fixture
def state(tmp_path: Path, clock: SimpleNamespace) -> LiveState:
    return LiveState(tmp_path, Plan(), clock=lambda: clock.now)


def test_what_engines_and_prune_jobs_do(
    state: LiveState, clock: SimpleNamespace
) -> None:
    state.on(Event(kind="placed", engine=0, text="a: 3 (1/2)"))
    state.on(Event(kind="loading", engine=1, checkpoint="wanda-0.5"))
    state.on(Event(kind="loading", engine=0, checkpoint="dense"))
    clock.now = 10.0
    state.on(Event(kind="began", engine=0, checkpoint="dense", task="xquad", items=40))
    clock.now = 20.0
    state.on(Event(kind="advanced", engine=0, items=20))
    state.on(Event(kind="unplaced", engine=2, text="4 free GPUs on one node"))
    clock.now = 25.0
    document = state.document(
        [Served(checkpoint="before", device="cpu", idle_share=0.1, waiting_share=0.2)]
    )
    assert [each["state"] for each in document["engines"]] == [
        "evaluating",
        "loading",
        "waiting for a place",
    ]
    at = {
        "checkpoint": "dense",
        "task": "xquad",
        "items": 40,
        "done": 20,
        "idle_share": 0.1,
        "waiting_share": 0.2,
    }
    assert document["engines"][0] == {
        "engine": 0,
        "gpu": "a: 3 (1/2)",
        "state": "evaluating",
        "seconds": 15.0,
        **at,
    }
    assert (document["items"], document["items_per_second"]) == (20, 20 / 15)
    state.on(Event(kind="ended", engine=0))
    assert state.document([])["engines"][0]["state"] == "idle"
    state.on(Event(kind="left", engine=1))
    assert state.document([])["engines"][1]["state"] == "ended"
    state.on(Event(kind="made", items=0, total=0))
    assert state.document([])["pruning"] is None
    state.on(Event(kind="made", items=1, total=3))
    assert state.document([])["pruning"] == {"done": 1, "total": 3}


def test_the_pace_is_that_of_the_last_minutes_and_the_last_errors_are_kept(
    state, clock
) -> None:
    assert state.document([])["items_per_second"] is None
    state.on(
        Event(kind="began", engine=0, checkpoint="dense", task="xquad", items=10000)
    )
    assert state.document([])["items_per_second"] is None
    for minute in range(1, 11):
        clock.now = 60.0 * minute
        state.on(Event(kind="advanced", engine=0, items=60 if minute <= 5 else 600))
    assert state.document([])["items_per_second"] == pytest.approx(10.0)
    for number in range(9):
        state.on(Event(kind="warned", text=f"a note\nof {number}"))
    state.on(Event(kind="died", engine=3, text="ActorDiedError"))
    document = state.document([])
    assert document["errors"] == [
        *(f"a note of {number}" for number in range(5, 9)),
        "engine 3 died (ActorDiedError)",
    ]
    assert document["engines"][-1]["state"] == "starting again"


def test_it_is_written_now_and_then(
    state: LiveState, clock: SimpleNamespace, tmp_path: Path
) -> None:
    file = tmp_path / "live.json"
    written = []
    for clock.now in (0.0, 1.0, 2.9, 3.0, 3.1, 7.0):
        file.unlink(missing_ok=True)
        state.look(list)
        if file.exists():
            written.append(json.loads(file.read_text())["seconds"])
    assert written == [0.0, 3.0, 7.0]


@pytest.mark.parametrize(
    "error",
    [
        InputError("no space left"),
        OSError(errno.EIO, "broken"),
        ResurfaceError("taken over"),
    ],
)
def test_only_the_loss_of_the_directory_ends_the_run(
    state: LiveState, monkeypatch, error: Exception
) -> None:
    monkeypatch.setattr(live, "write_atomically", Mock(side_effect=error))
    ends = isinstance(error, ResurfaceError) and not isinstance(error, InputError)
    with (
        pytest.raises(ResurfaceError, match="taken over")
        if ends
        else contextlib.nullcontext()
    ):
        state.look(list)


# ---- metrics.prom


SAMPLE = re.compile(r'(resurface_[a-z_]+)(?:\{([a-z]+)="([a-z_]+)"\})? (-?[0-9.e+-]+)')


def _read(file: Path) -> dict[tuple[str, str], float]:
    """The samples, by name without prefix and label; each after the help and the
    type of its name."""
    found, described = {}, []
    for line in file.read_text().splitlines():
        if line.startswith("# "):
            described.append(
                re.fullmatch(r"# (HELP|TYPE) (resurface_[a-z_]+) (.+)", line).group(2)
            )
        else:
            name, _, label, value = SAMPLE.fullmatch(line).groups()
            assert described[-2:] == [name, name]
            found[name.removeprefix("resurface_"), label or ""] = float(value)
    assert len(described) == 2 * len(set(described))
    return found


def _served(tokens: int) -> Served:
    return Served(checkpoint="dense", device="cpu", generated_tokens=tokens)


def test_the_counts_of_a_run_continue_those_of_earlier_calls(tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "events.jsonl"
    logs.parent.mkdir()
    earlier = ("started", 0), ("died", 30), ("retried", 40), ("started", 50)
    logs.write_text(
        "".join(
            f'{{"time": "2026-01-01T00:00:{second:02}Z", "event": "{event}"}}\n'
            for event, second in earlier
        )
    )
    planned = {
        ("dense", "t"): 40,
        ("dense", "u"): 20,
        ("wanda", "t"): 40,
        ("owl", "t"): 40,
    }
    now = iter(range(0, 10_000, 10))
    live = LiveState(
        tmp_path,
        Plan(planned=planned, lost={"owl"}, failures=1),
        clock=lambda: float(next(now)),
    )
    live.earlier_served = [_served(100)]
    live.plan.done["dense", "t"] = 40
    told = [
        Event(kind="placed", engine=0), Event(kind="loading", engine=0, checkpoint="dense"),
        Event(kind="began", engine=0, checkpoint="dense", task="u", items=20),
        Event(kind="advanced", engine=0, items=10),
    ]  # fmt: skip
    assert [live.on(event) for event in told] == [None] * 4
    live.look(lambda: [_served(11)])
    found = _read(tmp_path / "metrics.prom")
    states = {
        label: value for (name, label), value in found.items() if name == "checkpoints"
    }
    assert states == {"done": 0, "running": 1, "waiting": 1, "failed": 1}
    assert (
        found["items_done", ""],
        found["items_planned", ""],
        found["failures", ""],
    ) == (50, 140, 1)
    assert (
        found["engines_alive", ""],
        found["engine_deaths", ""],
        found["retries", ""],
    ) == (1, 1, 1)
    assert (
        found["tokens", "generated"],
        found["calls", ""],
        found["state", "running"],
    ) == (111, 3, 1)
    assert found["seconds", ""] > 40
    assert live.on(Event(kind="advanced", engine=0, items=10)) == ("dense", 60.0)
    live.on(Event(kind="ended", engine=0))
    live.on(Event(kind="decided", checkpoint="wanda", task="t", items=0, total=40))
    live.on(Event(kind="died", engine=0))
    live.write_metrics("finished_with_failures", [])
    found = _read(tmp_path / "metrics.prom")
    assert (
        found["checkpoints", "done"],
        found["items_planned", ""],
        found["engines_alive", ""],
    ) == (2, 100, 0)
    assert (
        found["state", "running"],
        found["state", "finished_with_failures"],
        found["engine_deaths", ""],
    ) == (0, 1, 2)


# ---- events.jsonl


def _log(run: Path) -> Path:
    return run / "logs" / "events.jsonl"


def test_events_have_a_time_and_a_number_and_every_one_is_documented(
    tmp_path: Path,
) -> None:
    first = EventLog(tmp_path)
    first.on(Event(kind="started"))
    assert not any(tmp_path.iterdir())  # not a run yet
    (tmp_path / "run.json").write_text("{}")
    first.accepted = True
    first.on(Event(kind="advanced", engine=0, items=20))
    first.on(Event(kind="died", engine=0, text="killed\n"))
    with _log(tmp_path).open("a") as log:
        log.write('{"time": "half a l')  # of a killed driver
    EventLog(tmp_path).on(Event(kind="refused", text="process 7"))
    again = EventLog(tmp_path)
    again.accepted = True
    again.on(Event(kind="started"))
    again.on(Event(kind="end", state="finished"))
    *before, _, refused, started, end = _log(tmp_path).read_text().splitlines()
    found = [json.loads(line) for line in (*before, refused, started, end)]
    assert [(each.pop("event"), each.pop("call")) for each in found] == [
        ("started", 1), ("died", 1), ("refused", 1), ("started", 2), ("end", 2)
    ]  # fmt: skip
    times = [datetime.fromisoformat(each.pop("time")) for each in found]
    assert times == sorted(times)
    assert {each.tzinfo for each in times} == {UTC}
    assert found == [
        {},
        {"engine": 0, "text": "killed\n"},
        {"text": "process 7"},
        {},
        {"state": "finished"},
    ]
    page = (Path(__file__).parents[5] / "docs" / "runs.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1]
        for line in page.split("## Events")[1].split("## ")[0].splitlines()
        if line.startswith("| `")
    ]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(named) == sorted({*get_args(Kind)} - {UNLOGGED})


def test_what_the_events_of_two_calls_tell(tmp_path: Path) -> None:
    told = [
        (0, "started", {}), (6, "placed", {"seconds": 6}), (25, "loaded", {"seconds": 14}),
        (32, "loaded", {"seconds": 2, "swapped": True}), (40, "died", {}), (100, "started", {}), (110, "end", {}),
    ]  # fmt: skip
    rows = [
        {"time": f"2026-01-01T00:{s // 60:02}:{s % 60:02}+00:00", "event": e, **more}
        for s, e, more in told
    ]
    _log(tmp_path).parent.mkdir()
    lines = [
        *map(json.dumps, rows),
        '"x"',
        '{"time": 3}',
        '{"time": "2026", "event": "died"}',
        "\x00",
        "[" * 10**5,
    ]
    _log(tmp_path).write_text("\n".join(lines))
    assert read_history(tmp_path / "none") == History()
    found = read_history(tmp_path)
    assert (found.began, found.seconds, found.load_seconds) == (
        "2026-01-01T00:00:00+00:00",
        50,
        11,
    )
    assert found.counts == {"started": 2, "placed": 1, "loaded": 2, "died": 1, "end": 1}
    # as in `status --json`
    assert json.loads(json.dumps(asdict(found)))["counts"] == found.counts
