"""`RUN/live.json`: the current work of a run, for `resurface status`. The driver writes it every few seconds.

It is made from the same events as the terminal's output. It has no finished items: status counts the records instead.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.core.errors import InputError, one_line
from evaluator.store.files import write_atomically

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event

NAME = "live.json"
_EVERY_SECONDS = 3.0
_WINDOW_SECONDS = 300.0  # for the measured pace
_ERRORS = 5  # the last ones
_STATES = {"ended": "idle", "unplaced": "waiting for a place", "died": "starting again", "left": "ended"}


@dataclass(slots=True)
class _Doing:
    state: str
    since: float
    checkpoint: str | None = None
    task: str | None = None
    items: int = 0  # of this turn
    done: int = 0


class LiveState:
    """Collects the events of a run; thread-safe. `look` writes the result every few seconds."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = run_dir / NAME
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._written: float | None = None
        self._engines: dict[int, _Doing] = {}
        self._gpus: dict[int, str] = {}  # by engine
        self._errors: deque[str] = deque(maxlen=_ERRORS)
        self._pruning: dict[str, int] | None = None
        self._items = 0
        self._pace: deque[tuple[float, int]] = deque()  # time, finished items at that time

    def on(self, event: Event) -> None:
        now = self._clock()
        with self._lock:
            match event.kind:
                case "loading":
                    self._engines[event.engine] = _Doing("loading", now, event.checkpoint)
                case "began":
                    if not self._pace:
                        self._pace.append((now, 0))
                    doing = _Doing("evaluating", now, event.checkpoint, event.task, event.items)
                    self._engines[event.engine] = doing
                case "advanced":
                    self._engines[event.engine].done += event.items
                    self._items += event.items
                    self._pace.append((now, self._items))
                    while len(self._pace) > 2 and self._pace[1][0] <= now - _WINDOW_SECONDS:
                        self._pace.popleft()
                case "made":
                    self._pruning = {"done": event.items, "total": event.total} if event.total else None
                case "placed":
                    self._gpus[event.engine] = event.text
                case "warned":
                    self._errors.append(one_line(event.text))
                case "ended" | "unplaced" | "died" | "left":
                    self._engines[event.engine] = _Doing(_STATES[event.kind], now)
                    if event.kind == "died":
                        self._errors.append(one_line(f"engine {event.engine} died ({event.text})"))

    def look(self, stats: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Write, at most every few seconds. Raises ResurfaceError if another driver took over, but no disk's error."""
        if self._written is not None and self._clock() - self._written < _EVERY_SECONDS:
            return
        self._written = self._clock()
        with contextlib.suppress(InputError, OSError):
            write_atomically(self._path, json.dumps(self.document(stats())).encode())

    def document(self, stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The content of the file. The shares of each engine are those of its last ended checkpoint."""
        shares = {row["engine"]: {name: row[name] for name in ("idle_share", "waiting_share")} for row in stats}
        now, rate = self._clock(), None  # the pace of the last minutes; None before the first shard
        with self._lock:
            if len(self._pace) > 1 and now > self._pace[0][0]:
                rate = (self._pace[-1][1] - self._pace[0][1]) / (now - self._pace[0][0])
            return {
                "seconds": round(now - self._started, 1),
                "items": self._items,
                "items_per_second": rate,
                "pruning": self._pruning,
                "engines": [
                    {
                        "engine": number,
                        "gpu": self._gpus.get(number, ""),
                        "state": doing.state,
                        "seconds": round(now - doing.since, 1),
                        "checkpoint": doing.checkpoint,
                        "task": doing.task,
                        "items": doing.items,
                        "done": doing.done,
                    }
                    | shares.get(number, {"idle_share": None, "waiting_share": None})
                    for number, doing in sorted(self._engines.items())
                ],
                "errors": list(self._errors),
            }
