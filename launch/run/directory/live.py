"""`RUN/live.json`: the current work of a run, for `resurface status`, and
`RUN/metrics.prom`: its counts as Prometheus text, for the textfile collector of a node
exporter. The driver writes both every few seconds, from the same events as the
terminal's output. Status counts finished items in the records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from jinja2 import Environment, FileSystemLoader

from evaluator.core.errors import InputError, json_text, one_line
from evaluator.core.files import write_atomically
from launch.run.directory.events import State, read_history

if TYPE_CHECKING:
    from evaluator.store.run_json import Served
    from launch.run.decide.assignments import Event, Part


NAME = "live.json"
_EVERY_SECONDS = 3.0
_WINDOW_SECONDS = 300.0  # for the measured pace
_ERRORS = 5  # the last ones
_STATES = {"placed": "idle", "ended": "idle", "unplaced": "waiting for a place", "died": "starting again",
           "left": "ended"}  # fmt: skip


@dataclass(slots=True)
class _Doing:
    state: str
    since: float
    checkpoint: str | None = None
    task: str | None = None
    items: int = 0  # of this turn
    done: int = 0


class LiveState:
    """Collects the events of a run; thread-safe. `look` writes the results every few
    seconds."""

    def __init__(
        self, run_dir: Path, plan: Plan, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_dir = run_dir
        self.plan = plan
        # of events, by kind; this call started before it had a LiveState
        self._counts = Counter(started=1)
        self._earlier = read_history(run_dir)
        # the rows of earlier calls' engines
        self.earlier_served: Sequence[Served] = ()
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
        # time, finished items at that time
        self._pace: deque[tuple[float, int]] = deque()

    def on(self, event: Event) -> tuple[str, float] | None:
        """Note an event; returns the checkpoint that it completes, and the seconds
        since its first load began."""
        now = self._clock()
        with self._lock:
            part = event.checkpoint, event.task
            self._counts[event.kind] += 1
            match event.kind:
                case "loading":
                    self._began.setdefault(event.checkpoint, now)
                    self._engines[event.engine] = _Doing(
                        "loading", now, event.checkpoint
                    )
                case "began":
                    if not self._pace:
                        self._pace.append((now, 0))
                    doing = _Doing(
                        "evaluating", now, event.checkpoint, event.task, event.items
                    )
                    self._engines[event.engine] = doing
                case "advanced":
                    doing = self._engines[event.engine]
                    doing.done += event.items
                    part = doing.checkpoint or "", doing.task or ""
                    self._items += event.items
                    self._pace.append((now, self._items))
                    while (
                        len(self._pace) > 2
                        and self._pace[1][0] <= now - _WINDOW_SECONDS
                    ):
                        self._pace.popleft()
                case "made":
                    self._pruning = (
                        {"done": event.items, "total": event.total}
                        if event.total
                        else None
                    )
                case "warned" | "retried" if event.text:
                    self._errors.append(one_line(event.text))
                case "starting" | "placed" | "ended" | "unplaced" | "died" | "left":
                    self._engines[event.engine] = _Doing(
                        _STATES.get(event.kind, event.kind), now
                    )
                    if event.kind == "placed":
                        self._gpus[event.engine] = event.text
                    if event.kind == "died":
                        self._errors.append(
                            one_line(f"engine {event.engine} died ({event.text})")
                        )
            if self.plan.on(event, part):
                return part[0], round(now - self._began.get(part[0], self._started), 3)
        return None

    def look(self, stats: Callable[[], Sequence[Served]]) -> None:
        """Write, at most every few seconds. Raises ResurfaceError if another driver
        took over, but no disk's error."""
        if self._written is not None and self._clock() - self._written < _EVERY_SECONDS:
            return
        self._written, rows = self._clock(), stats()
        with contextlib.suppress(InputError, OSError):
            write_atomically(
                self._run_dir / NAME, json_text(self.document(rows)).encode()
            )
        self.write_metrics("running", rows)

    def write_metrics(self, state: State, stats: Sequence[Served]) -> None:
        """Raises as `look`. `stats`: the rows of this call's engines."""
        with self._lock:
            busy = {
                doing.checkpoint
                for doing in self._engines.values()
                if doing.state == "evaluating"
            }
            rows = [*self.earlier_served, *stats]
            text = _TEMPLATES.get_template(f"{METRICS}.j2").render(
                plan=self.plan,
                done=sum(
                    min(self.plan.done[part], items)
                    for part, items in self.plan.planned.items()
                ),
                busy=busy,
                alive=sum(
                    doing.state in ("idle", "loading", "evaluating")
                    for doing in self._engines.values()
                ),
                counts=self._counts + Counter(self._earlier.counts),
                tokens={
                    "prompt": sum(row.prompt_tokens for row in rows),
                    "generated": sum(row.generated_tokens for row in rows),
                    "cached": sum(row.cached_tokens for row in rows),
                },
                seconds=round(self._earlier.seconds + self._clock() - self._started, 3),
                state=state,
                states={name: int(name == state) for name in get_args(State)},
            )
        with contextlib.suppress(InputError, OSError):
            write_atomically(self._run_dir / METRICS, text.encode())

    def document(self, stats: Sequence[Served]) -> dict[str, Any]:
        """The content of the file. The shares of each engine are those of its last
        ended checkpoint."""
        shares = {
            row.engine: {
                "idle_share": row.idle_share,
                "waiting_share": row.waiting_share,
            }
            for row in stats
        }
        # the pace of the last minutes; None before the first shard
        now, rate = self._clock(), None
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
                        "seconds": round(now - doing.since, 1),
                    }
                    | {
                        name: getattr(doing, name)
                        for name in ("state", "checkpoint", "task", "items", "done")
                    }
                    | shares.get(number, {"idle_share": None, "waiting_share": None})
                    for number, doing in sorted(self._engines.items())
                ],
                "errors": list(self._errors),
            }


METRICS = "metrics.prom"
_TEMPLATES = Environment(  # noqa: S701  (text for Prometheus, not HTML)
    loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True
)


@dataclass(slots=True)
class Plan:
    """The items of a run, by checkpoint and task; `lost`: checkpoints that failed,
    in whole or in part."""

    planned: dict[Part, int] = field(default_factory=dict)
    done: Counter[Part] = field(default_factory=Counter)
    lost: set[str] = field(default_factory=set)
    failures: int = 0

    def on(self, event: Event, part: Part) -> bool:
        """Count an event of a part; returns whether it completes the part's
        checkpoint."""
        match event.kind:
            case "advanced":
                self.done[part] += event.items
                return self.has(part)
            case "decided":
                self.planned[part] = max(event.items, self.done[part])
                return self.has(part)
            case "gave_up":
                self.failures += 1
                self.lost |= set() if event.state == "item" else {event.checkpoint}
        return False

    def has(self, part: Part) -> bool:
        """Whether all items of its checkpoint are done."""
        if self.done[part] < self.planned.get(part, 0):
            return False
        return all(
            self.done[each] >= items
            for each, items in self.planned.items()
            if each[0] == part[0]
        )

    def states(self, busy: Collection[str | None]) -> Counter[str]:
        """The number of checkpoints in each state. `busy`: those that engines
        evaluate."""
        left = {
            part[0] for part, items in self.planned.items() if self.done[part] < items
        }
        found = Counter(done=0, running=0, waiting=0, failed=0)
        for name in {part[0] for part in self.planned} | self.lost:
            state = (
                "running"
                if name in busy
                else "failed"
                if name in self.lost
                else "waiting"
            )
            found[state if name in left or name in self.lost else "done"] += 1
        return found
