"""`RUN/logs/events.jsonl`: what happened when, over all calls of the command. It is
a module of its own, since nothing else of a run may look at a clock that can be set."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from evaluator.core.errors import json_text, mapping_at
from launch.run.events import Attempt, Event, Planned, Refused, event_of
from launch.run.state import RunState, advance


def _file(run_dir: Path) -> Path:
    return run_dir / "logs" / "events.jsonl"


class EventLog:
    """Appends a line for each event: `time` (UTC), `event`, `call` (of the command,
    from 1), and its own fields. A disk without room loses lines, not the run. Lines
    wait until a sweep is planned: a refused command leaves none behind. Attempts that
    failed survive the machine's end; those that went well are as safe as their records.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run, self._path = run_dir / "run.json", _file(run_dir)
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._open = False
        # a killed driver may leave half a line
        with suppress(OSError), self._path.open("rb") as log:
            log.seek(-1, 2)  # an error if it is empty
            self._waiting = [] if log.read() == b"\n" else ["\n"]

    def on(self, event: Event, state: RunState) -> None:
        """`state`: after the event, by a clock as `clock`."""
        if not event.logged:
            return
        now = datetime.fromtimestamp(state.now, UTC).isoformat(timespec="milliseconds")
        call = state.counts["started"]
        line = {"time": now, "event": event.kind, "call": call, **event.row()}
        with self._lock:
            self._waiting.append(json_text(line) + "\n")
            self._open = self._open or isinstance(event, Planned | Refused)
            if self._open and self._run.exists():
                with suppress(OSError):
                    self._path.parent.mkdir(exist_ok=True)
                    with self._path.open("a", encoding="utf-8") as log:
                        log.write("".join(self._waiting))
                        if isinstance(event, Attempt):
                            log.flush()
                            os.fsync(log.fileno())
                self._waiting.clear()


def read_state(run_dir: Path) -> RunState:
    """The state by the events of a run. Whatever is no event is left out: the file may
    be damaged, or anybody's. So are events of a driver that another has followed."""
    state, lines = RunState(), list[bytes]()
    file = _file(run_dir)
    if file.is_file():  # reading a pipe would never end
        with suppress(OSError):
            lines = file.read_bytes().splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
            row = mapping_at(json.loads(line))
            now = datetime.fromisoformat(row["time"]).astimezone(UTC).timestamp()
            if row["call"] >= state.counts["started"]:
                state = advance(state, event_of(row), now)
    return state


def clock() -> Callable[[], float]:
    """Seconds since 1970, which nobody can set while this process works."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()


def time_of_day() -> str:
    """The local time, HH:MM:SS, for the lines of a terminal."""
    return datetime.now().astimezone().strftime("%H:%M:%S")
