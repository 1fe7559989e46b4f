"""What logs/events.jsonl keeps over all calls of a run, and what is read from it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from launch.run.decide.assignments import Event, Kind
from launch.run.directory.events import UNLOGGED, EventLog, History, read_history


def _file(run: Path) -> Path:
    return run / "logs" / "events.jsonl"


def test_events_have_a_time_and_the_number_of_their_call(tmp_path: Path) -> None:
    first = EventLog(tmp_path)
    first.on(Event(kind="started"))
    assert not any(tmp_path.iterdir())  # not a run yet
    (tmp_path / "run.json").write_text("{}")
    first.accepted = True
    first.on(Event(kind="advanced", engine=0, items=20))
    first.on(Event(kind="died", engine=0, text="killed\n"))
    with _file(tmp_path).open("a") as log:
        log.write('{"time": "half a l')  # of a killed driver
    EventLog(tmp_path).on(Event(kind="refused", text="process 7"))
    again = EventLog(tmp_path)
    again.accepted = True
    again.on(Event(kind="started"))
    again.on(Event(kind="end", state="finished"))
    *before, _, refused, started, end = _file(tmp_path).read_text().splitlines()
    found = [json.loads(line) for line in (*before, refused, started, end)]
    assert [(each.pop("event"), each.pop("call")) for each in found] == [
        ("started", 1), ("died", 1), ("refused", 1), ("started", 2), ("end", 2)
    ]  # fmt: skip
    times = [datetime.fromisoformat(each.pop("time")) for each in found]
    assert times == sorted(times)
    assert {each.tzinfo for each in times} == {UTC}
    assert found == [{}, {"engine": 0, "text": "killed\n"}, {"text": "process 7"}, {}, {"state": "finished"}]


def test_what_the_events_of_two_calls_tell(tmp_path: Path) -> None:
    told = [
        (0, "started", {}), (6, "placed", {"seconds": 6}), (25, "loaded", {"seconds": 14}),
        (32, "loaded", {"seconds": 2, "swapped": True}), (40, "died", {}), (100, "started", {}), (110, "end", {}),
    ]  # fmt: skip
    rows = [{"time": f"2026-01-01T00:{s // 60:02}:{s % 60:02}+00:00", "event": e, **more} for s, e, more in told]
    _file(tmp_path).parent.mkdir()
    lines = [*map(json.dumps, rows), '"x"', '{"time": 3}', '{"time": "2026", "event": "died"}', "\x00", "[" * 10**5]
    _file(tmp_path).write_text("\n".join(lines))
    assert read_history(tmp_path / "none") == History()
    found = read_history(tmp_path)
    assert (found.began, found.seconds, found.load_seconds) == ("2026-01-01T00:00:00+00:00", 50, 11)
    assert found.counts == {"started": 2, "placed": 1, "loaded": 2, "died": 1, "end": 1}


def test_every_event_is_documented() -> None:
    page = (Path(__file__).parents[5] / "docs" / "runs.md").read_text(encoding="utf-8")
    rows = [
        line.split("|")[1] for line in page.split("## Events")[1].split("## ")[0].splitlines() if line.startswith("| `")
    ]
    named = [name.strip(" `") for row in rows for name in row.split(",")]
    assert sorted(named) == sorted({*get_args(Kind)} - {UNLOGGED})
