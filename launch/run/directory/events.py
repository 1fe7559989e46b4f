"""`RUN/logs/events.jsonl`: what happened when, over all calls of the command. It is a module of its own, since nothing
else of a run may look at a clock that can be set."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event


class EventLog:
    """Appends a line for each event: `time` (UTC), `event`, `call` (of the command, from 1), and its own fields. A disk
    without room loses lines, not the run. A line is one write, so that threads cannot mix theirs."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "logs" / "events.jsonl"
        self._call, last = 1, b"\n"
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a+b") as log:
                log.seek(0)
                for last in log:
                    self._call += b'"event": "started"' in last
                if not last.endswith(b"\n"):  # a killed driver may leave half a line
                    log.write(b"\n")
        self.add("started")

    def on(self, event: Event) -> None:
        known = {each.name: value for each in fields(event) if (value := getattr(event, each.name)) != each.default}
        self.add(known.pop("kind"), **known)

    def add(self, event: str, **known: Any) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, "call": self._call}
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line | known) + "\n")
