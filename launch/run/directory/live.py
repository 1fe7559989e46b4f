"""`RUN/live.json`: the current work of a run, for `resurface status`. The driver writes it every few seconds, together
with `RUN/metrics.prom`.

Both are made from the same events as the terminal's output. Status counts finished items in the records.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluator.core.errors import InputError, one_line
from evaluator.store.files import write_atomically
from launch.run.directory.events import State, read_history
from launch.run.directory.metrics import NAME as METRICS
from launch.run.directory.metrics import Tally, prometheus

if TYPE_CHECKING:
    from launch.run.decide.assignments import Event, Part

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
    """Collects the events of a run; thread-safe. `look` writes the results every few seconds."""

    def __init__(self, run_dir: Path, tally: Tally, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`tally`: what is planned, and what failed in earlier calls."""
        self._run_dir = run_dir
        self._tally = tally
        self._earlier = read_history(run_dir)
        self.earlier_stats: Sequence[Mapping[str, Any]] = ()  # the rows of earlier calls' engines
        self._worked = 0.0  # seconds of all engines together, in turns that have ended
        self._began: dict[str, float] = {}  # by checkpoint: its first load
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

    def on(self, event: Event) -> tuple[str, float] | None:
        """Note an event; returns the checkpoint that it completes, and the seconds since its first load began."""
        now = self._clock()
        with self._lock:
            completed = self._tally.on(event)
            match event.kind:
                case "loading":
                    self._began.setdefault(event.checkpoint, now)
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
                case "warned" | "retried" if event.text:
                    self._errors.append(one_line(event.text))
                case "starting" | "ended" | "unplaced" | "died" | "left":
                    self._engines[event.engine] = _Doing(_STATES.get(event.kind, event.kind), now)
                    self._worked += event.seconds
                    if event.kind == "died":
                        self._errors.append(one_line(f"engine {event.engine} died ({event.text})"))
            began = self._began.get(completed or "", self._started)
        return None if completed is None else (completed, round(now - began, 3))

    def known(self, part: Part, items: int) -> None:
        """Earlier calls have evaluated so many items of a checkpoint's task."""
        with self._lock:
            self._tally.done[part] += items

    def look(self, stats: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Write, at most every few seconds. Raises ResurfaceError if another driver took over, but no disk's error."""
        if self._written is not None and self._clock() - self._written < _EVERY_SECONDS:
            return
        self._written, rows = self._clock(), list(stats())
        with contextlib.suppress(InputError, OSError):
            write_atomically(self._run_dir / NAME, json.dumps(self.document(rows)).encode())
        self.write_metrics("running", rows)

    def write_metrics(self, state: State, stats: Collection[Mapping[str, Any]]) -> None:
        """Raises as `look`. `stats`: the rows of this call's engines."""
        with self._lock:
            seconds = self._clock() - self._started
            text = prometheus(self._tally, self._earlier, seconds, state, [*self.earlier_stats, *stats])
        with contextlib.suppress(InputError, OSError):
            write_atomically(self._run_dir / METRICS, text.encode())

    def document(self, stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The content of the file. The shares of each engine are those of its last ended checkpoint."""
        shares = {row["engine"]: {name: row[name] for name in ("idle_share", "waiting_share")} for row in stats}
        now, rate = self._clock(), None  # the pace of the last minutes; None before the first shard
        with self._lock:
            if len(self._pace) > 1 and now > self._pace[0][0]:
                rate = (self._pace[-1][1] - self._pace[0][1]) / (now - self._pace[0][0])
            working = [doing for doing in self._engines.values() if doing.state == "evaluating"]
            worked = self._worked + sum(now - doing.since for doing in working)
            return {
                "seconds": round(now - self._started, 1),
                "items": self._items,
                "items_per_second": rate,
                "engine_seconds": round(worked, 1),
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
