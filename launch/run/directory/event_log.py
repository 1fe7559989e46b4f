"""`RUN/logs/events.jsonl`: what happened when, over all calls of the command. It is
a module of its own, since nothing else of a run may look at a clock that can be set."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from evaluator.core.errors import json_text, mapping_at
from launch.run.events import Event, Refused, Started

_MOST = 10**9  # seconds


class EventLog:
    """Appends a line for each event: `time` (UTC), `event`, `call` (of the command,
    from 1), and its own fields. A disk without room loses lines, not the run. Lines
    wait until `accepted`: a refused command leaves none behind.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run, self._path = run_dir / "run.json", run_dir / "logs" / "events.jsonl"
        self._call = read_history(run_dir).counts.get("started", 0)
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self.accepted = False
        # a killed driver may leave half a line
        with suppress(OSError), self._path.open("rb") as log:
            log.seek(-1, 2)  # an error if it is empty
            self._waiting = [] if log.read() == b"\n" else ["\n"]

    def on(self, event: Event, _: object = None) -> None:
        if not event.logged:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._lock:
            self._call += isinstance(event, Started)
            line = {"time": now, "event": event.kind, "call": self._call}
            self._waiting.append(json_text(line | event.row()) + "\n")
            if (self.accepted or isinstance(event, Refused)) and self._run.exists():
                with suppress(OSError):
                    self._path.parent.mkdir(exist_ok=True)
                    with self._path.open("a", encoding="utf-8") as log:
                        log.write("".join(self._waiting))
                self._waiting.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What the events of a run tell of all its calls."""

    began: str | None = None  # ISO 8601, UTC
    seconds: float = 0.0  # of all calls together
    counts: Mapping[str, int] = field(default_factory=dict)  # of events, by kind
    # the mean of an engine's loads, with its processes' starts
    load_seconds: float = 0.0


def read_history(run_dir: Path) -> History:
    """Read the events of a run. Whatever is no event is left out: the file may be
    damaged, or anybody's."""
    counts: Counter[str] = Counter()
    spans: dict[int, list[datetime]] = {}  # by call: its first and its last event's
    loading, lines = 0.0, list[bytes]()
    with suppress(OSError):
        lines = (run_dir / "logs" / "events.jsonl").read_bytes().splitlines()
    for line in lines:
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            row = mapping_at(json.loads(line))
            time = datetime.fromisoformat(row["time"]).astimezone(UTC)
            kind = str(row["event"])
            counts[kind] += 1
            spans.setdefault(counts["started"], [time, time])[1] = time
            if kind in ("placed", "loaded"):
                loading += float(row.get("seconds", 0.0))
    seconds = 0.0
    for first, last in spans.values():
        seconds += max(0.0, (last - first).total_seconds())
    began = min((first for first, _ in spans.values()), default=None)
    if not 0 <= loading < _MOST:
        loading = 0.0
    return History(
        began=None if began is None else began.isoformat(timespec="seconds"),
        seconds=seconds,
        counts=dict(counts),
        load_seconds=loading / max(1, counts["loaded"]),
    )


def time_of_day() -> str:
    """The local time, HH:MM:SS, for the lines of a terminal."""
    return datetime.now().astimezone().strftime("%H:%M:%S")
