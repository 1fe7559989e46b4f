"""What a run is doing at this moment, for `resurface status`: `RUN/live.json`, written anew every few seconds.

The driver tells it what it tells the terminal. What is finished is not in it: that is counted in the records.
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
    from launch.run.decide.events import Reporter

NAME = "live.json"
_EVERY_SECONDS = 3.0
_WINDOW_SECONDS = 300.0  # of which the pace is told
_ERRORS = 5  # the last ones


@dataclass(slots=True)
class _Doing:
    """What one engine does."""

    state: str
    since: float
    checkpoint: str | None = None
    task: str | None = None
    items: int = 0  # of this turn
    done: int = 0


class LiveState:
    """A reporter that remembers; thread-safe. `look` writes what it knows when it is time."""

    def __init__(
        self,
        run_dir: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`ended` is called when an engine has ended a turn: a checkpoint may be done."""
        self._ended = ended
        self._path = run_dir / NAME
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._written: float | None = None
        self._engines: dict[int, _Doing] = {}
        self._errors: deque[str] = deque(maxlen=_ERRORS)
        self._pruning: dict[str, int] | None = None
        self._items = 0
        self._pace: deque[tuple[float, int]] = deque()  # when, how many items had been finished by then

    def pruning(self, done: int, total: int) -> None:
        with self._lock:
            self._pruning = {"done": done, "total": total} if total else None

    def loading(self, engine: int, checkpoint: str) -> None:
        self._does(engine, _Doing("loading", self._clock(), checkpoint))

    def loaded(self, engine: int, checkpoint: str, swapped: bool, seconds: float) -> None:
        """Said of an engine that begins its work at once."""

    def began(self, engine: int, checkpoint: str, task: str, items: int) -> None:
        with self._lock:
            if not self._pace:
                self._pace.append((self._clock(), 0))
        self._does(engine, _Doing("evaluating", self._clock(), checkpoint, task, items))

    def advanced(self, engine: int, items: int) -> None:
        with self._lock:
            self._engines[engine].done += items
            self._items += items
            now = self._clock()
            self._pace.append((now, self._items))
            while len(self._pace) > 2 and self._pace[1][0] <= now - _WINDOW_SECONDS:
                self._pace.popleft()

    def ended(self, engine: int) -> None:
        self._does(engine, _Doing("idle", self._clock()))
        self._ended()

    def unplaced(self, engine: int, gpus: int) -> None:
        self._does(engine, _Doing("waiting for a place", self._clock()))

    def died(self, engine: int, reason: str) -> None:
        self._does(engine, _Doing("starting again", self._clock()))
        self.warned(f"engine {engine} died ({reason})")

    def left(self, engine: int) -> None:
        self._does(engine, _Doing("ended", self._clock()))

    def warned(self, message: str) -> None:
        with self._lock:
            self._errors.append(one_line(message))

    def _does(self, engine: int, what: _Doing) -> None:
        with self._lock:
            self._engines[engine] = what

    def look(self, stats: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        """Write the file, unless that was done a few seconds ago. `stats`: rows of `engine_stats`.

        Raises ResurfaceError where another driver has taken the directory over. That the file cannot be written for
        another reason ends no run: what matters more will say so.
        """
        if self._written is not None and self._clock() - self._written < _EVERY_SECONDS:
            return
        self._written = self._clock()
        with contextlib.suppress(InputError, OSError):
            write_atomically(self._path, json.dumps(self.document(stats())).encode())

    def document(self, stats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What the file says; of each engine with the shares of its last checkpoint that has ended."""
        shares = {row["engine"]: {name: row[name] for name in ("idle_share", "waiting_share")} for row in stats}
        now = self._clock()
        with self._lock:
            return {
                "seconds": round(now - self._started, 1),
                "items": self._items,
                "items_per_second": self._items_per_second(now),
                "pruning": self._pruning,
                "engines": [
                    {
                        "engine": number,
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

    def _items_per_second(self, now: float) -> float | None:
        """Over the last minutes; None before the first shard."""
        if len(self._pace) < 2 or now <= self._pace[0][0]:
            return None
        return (self._pace[-1][1] - self._pace[0][1]) / (now - self._pace[0][0])


class Both:
    """Two reporters that hear the same."""

    def __init__(self, first: Reporter, second: Reporter) -> None:
        self._each = (first, second)

    def loading(self, engine: int, checkpoint: str) -> None:
        for each in self._each:
            each.loading(engine, checkpoint)

    def loaded(self, engine: int, checkpoint: str, swapped: bool, seconds: float) -> None:
        for each in self._each:
            each.loaded(engine, checkpoint, swapped, seconds)

    def began(self, engine: int, checkpoint: str, task: str, items: int) -> None:
        for each in self._each:
            each.began(engine, checkpoint, task, items)

    def advanced(self, engine: int, items: int) -> None:
        for each in self._each:
            each.advanced(engine, items)

    def ended(self, engine: int) -> None:
        for each in self._each:
            each.ended(engine)

    def unplaced(self, engine: int, gpus: int) -> None:
        for each in self._each:
            each.unplaced(engine, gpus)

    def died(self, engine: int, reason: str) -> None:
        for each in self._each:
            each.died(engine, reason)

    def left(self, engine: int) -> None:
        for each in self._each:
            each.left(engine)

    def warned(self, message: str) -> None:
        for each in self._each:
            each.warned(message)
