"""What a run tells of itself while it works, in live.json, metrics.prom and
events.jsonl."""

import contextlib
import errno
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.store.run_json import Failure, Served
from launch.run.directory import live
from launch.run.directory.event_log import EventLog, History, read_history
from launch.run.directory.live import LiveFiles, live_of, read_live
from launch.run.events import (
    Advanced,
    Began,
    Died,
    End,
    Event,
    GaveUp,
    Loaded,
    Made,
    Placed,
    Planned,
    Recorded,
    Refused,
    Started,
)
from launch.run.state import Bus


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=0.0)


@pytest.fixture
def bus(clock: SimpleNamespace) -> Bus:
    return Bus(clock=lambda: clock.now)


def _served(tokens: int = 0) -> Served:
    return Served(
        checkpoint="before",
        device="cpu",
        generated_tokens=tokens,
        idle_share=0.1,
        waiting_share=0.2,
    )


def test_live_document(bus: Bus, clock: SimpleNamespace, tmp_path: Path) -> None:
    bus.report(Placed(engine=0, text="a: 3 (1/2)"))
    clock.now = 10.0
    bus.report(Began(engine=0, checkpoint="dense", task="xquad", items=40))
    clock.now = 20.0
    bus.report(Advanced(engine=0, items=20))
    bus.report(Made(items=1, total=3))
    clock.now = 25.0
    LiveFiles(tmp_path, bus).poll(lambda: [_served()])
    assert read_live(tmp_path) == live_of(bus.state, [_served()], clock.now)
    engine = {
        "engine": 0, "gpu": "a: 3 (1/2)", "state": "evaluating", "checkpoint": "dense", "task": "xquad",
        "items": 40, "done": 20, "seconds": 15.0, "idle_share": 0.1, "waiting_share": 0.2,
    }  # fmt: skip
    assert json.loads((tmp_path / "live.json").read_text()) == {
        "seconds": 25.0, "items": 20, "items_per_second": 20 / 15, "pruning": {"done": 1, "total": 3},
        "engines": [engine], "errors": [],
    }  # fmt: skip


def test_live_file_is_written_periodically(
    bus: Bus, clock: SimpleNamespace, tmp_path: Path
) -> None:
    files, written = LiveFiles(tmp_path, bus), []
    for clock.now in (0.0, 1.0, 2.9, 3.0, 3.1, 7.0):
        (tmp_path / "live.json").unlink(missing_ok=True)
        files.poll(list)
        if (tmp_path / "live.json").exists():
            written.append(read_live(tmp_path).seconds)
    assert written == [0.0, 3.0, 7.0]


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (InputError("no space left"), False),
        (OSError(errno.EIO, "broken"), False),
        (ResurfaceError("taken over"), True),
    ],
)
def test_lost_directory_ends_the_run(bus, tmp_path, monkeypatch, error, ends) -> None:
    monkeypatch.setattr(live, "write_atomically", Mock(side_effect=error))
    with pytest.raises(ResurfaceError) if ends else contextlib.nullcontext():
        LiveFiles(tmp_path, bus).poll(list)


# ---- metrics.prom


SAMPLE = re.compile(r'(resurface_[a-z_]+)(?:\{([a-z]+)="([a-z_]+)"\})? (-?[0-9.e+-]+)')


def _read(file: Path) -> dict[str, float]:
    """The samples, as "name" or "name label", without prefix."""
    found = {}
    for line in file.read_text().splitlines():
        if not line.startswith("# "):
            name, _, label, value = SAMPLE.fullmatch(line).groups()
            found[f"{name.removeprefix('resurface_')} {label or ''}".strip()] = value
    return found


def test_metrics_continue_earlier_calls(tmp_path: Path) -> None:
    _log(tmp_path).parent.mkdir()
    earlier = ("started", 0), ("died", 30), ("retried", 40), ("started", 50)
    for event, second in earlier:
        line = {"time": f"2026-01-01T00:00:{second:02}Z", "event": event}
        with _log(tmp_path).open("a") as log:
            log.write(json.dumps(line) + "\n")
    planned = {("dense", "t"): 40, ("dense", "u"): 20, ("wanda", "t"): 40, ("owl", "t"): 40}  # fmt: skip
    bus = Bus(clock=lambda: 0.0)
    files = LiveFiles(tmp_path, bus, [_served(100)])
    for event in (
        Started(),
        Planned(planned, (Failure(checkpoint="owl", stage="load", reason="no"),)),
        Recorded(checkpoint="dense", task="t", items=40),
        Began(engine=0, checkpoint="dense", task="u", items=20),
        Advanced(engine=0, items=10),
    ):
        bus.report(event)
    files.poll(lambda: [_served(11)])
    expected = {
        "items_done": 50, "items_planned": 140, "failures": 1, "checkpoints done": 0, "checkpoints running": 1,
        "checkpoints waiting": 1, "checkpoints failed": 1, "engines_alive": 1, "engine_deaths": 1, "retries": 1,
        "tokens prompt": 0, "tokens generated": 111, "tokens cached": 0, "seconds": "40.0", "calls": 3,
        "state running": 1, "state finished": 0, "state finished_with_failures": 0, "state failed": 0,
        "state interrupted": 0,
    }  # fmt: skip
    assert _read(tmp_path / "metrics.prom") == {k: str(v) for k, v in expected.items()}
    bus.report(Died(engine=0))
    files.write_metrics("finished_with_failures", [])
    found = _read(tmp_path / "metrics.prom")
    assert (found["engines_alive"], found["engine_deaths"]) == ("0", "2")
    assert (found["state running"], found["state finished_with_failures"]) == ("0", "1")


# ---- events.jsonl


def _log(run: Path) -> Path:
    return run / "logs" / "events.jsonl"


def _kinds(kind: type[Event]) -> Iterator[str]:
    if hasattr(kind, "kind") and kind.logged:
        yield kind.kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def test_every_event_is_documented() -> None:
    page = (Path(__file__).parents[5] / "docs" / "runs.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1]
        for line in page.split("## Events")[1].split("## ")[0].splitlines()
        if line.startswith("| `")
    ]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(named) == sorted(_kinds(Event))


@pytest.mark.parametrize(
    ("event", "row"),
    [
        (Started(), {}),
        (Loaded(engine=0, checkpoint="dense", seconds=3.5), {"engine": 0, "checkpoint": "dense", "seconds": 3.5}),
        (GaveUp(Failure(checkpoint="dense", stage="prune", reason="no")),
         {"checkpoint": "dense", "state": "prune", "text": "dense could not be made: no"}),
    ],
)  # fmt: skip
def test_fields_of_an_event(event, row) -> None:
    """In the order of a line; empty fields are left out."""
    assert [*event.row().items()] == [*row.items()]


def test_lines_of_two_calls(tmp_path: Path) -> None:
    first = EventLog(tmp_path)
    first.on(Started())
    assert not any(tmp_path.iterdir())  # not a run yet
    (tmp_path / "run.json").write_text("{}")
    first.accepted = True
    first.on(Advanced(engine=0, items=20))
    first.on(Died(engine=0, text="killed\n"))
    with _log(tmp_path).open("a") as log:
        log.write('{"time": "half a l')  # of a killed driver
    EventLog(tmp_path).on(Refused("process 7"))
    again = EventLog(tmp_path)
    again.accepted = True
    again.on(Started())
    again.on(End("finished"))
    *before, _, refused, started, end = _log(tmp_path).read_text().splitlines()
    found = [json.loads(line) for line in (*before, refused, started, end)]
    assert [(each["event"], each["call"]) for each in found] == [
        ("started", 1), ("died", 1), ("refused", 1), ("started", 2), ("end", 2)
    ]  # fmt: skip
    times = [datetime.fromisoformat(each["time"]) for each in found]
    assert times == sorted(times)
    assert {each.tzinfo for each in times} == {UTC}
    assert found[1]["text"] == "killed\n"


def test_history_of_two_calls(tmp_path: Path) -> None:
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
    counts = {"started": 2, "placed": 1, "loaded": 2, "died": 1, "end": 1}
    assert found == History(
        began="2026-01-01T00:00:00+00:00", seconds=50, counts=counts, load_seconds=11
    )
    # as in `status --json`
    assert json.loads(json.dumps(asdict(found)))["counts"] == counts
