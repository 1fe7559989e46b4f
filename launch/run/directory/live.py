"""`RUN/live.json`: the current work of a run, for `resurface status`, and
`RUN/metrics.prom`: its counts as Prometheus text, for the textfile collector of a node
exporter. The driver writes both every few seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from jinja2 import Environment, FileSystemLoader
from pydantic import TypeAdapter, ValidationError

from evaluator.core.errors import InputError, json_text
from evaluator.core.files import write_atomically
from evaluator.store.run_json import Served
from launch.run.directory.event_log import read_history
from launch.run.events import State
from launch.run.state import Bus, RunState

NAME, METRICS = "live.json", "metrics.prom"
_EVERY_SECONDS = 3.0
_ALIVE = ("idle", "loading", "evaluating")
_TEMPLATES = Environment(  # noqa: S701  (text for Prometheus, not HTML)
    loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """An engine's current work, and its waiting time on the previous checkpoint."""

    engine: int
    # "node-a: 3 (1/2)": it has half of the third GPU there; "": none, or unknown
    gpu: str
    state: str
    checkpoint: str | None
    task: str | None = None
    items: int = 0
    done: int = 0
    seconds: float = 0.0
    idle_share: float | None = None
    waiting_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The content of live.json."""

    seconds: float = 0.0
    items: int = 0
    items_per_second: float | None = None  # in the last minutes
    pruning: dict[str, int] | None = None  # checkpoints: done, total
    engines: tuple[EngineStatus, ...] = ()
    errors: tuple[str, ...] = ()


def live_of(state: RunState, served: Sequence[Served], now: float) -> Live:
    """The shares of each engine are those of its last ended checkpoint."""
    last = {row.engine: row for row in served}
    engines = []
    for number, engine in sorted(state.engines.items()):
        shown, row = asdict(engine), last.get(number)
        shown["seconds"] = round(now - shown.pop("since"), 1)
        if row is not None:
            shown |= {"idle_share": row.idle_share, "waiting_share": row.waiting_share}
        engines.append(EngineStatus(engine=number, **shown))
    pruning = state.compressed
    return Live(
        seconds=round(now - state.started, 1),
        items=state.items,
        items_per_second=state.rate(now),
        pruning=pruning and {"done": pruning[0], "total": pruning[1]},
        engines=tuple(engines),
        errors=state.errors,
    )


def read_live(run_dir: Path) -> Live:
    """The last live.json; an empty one if there is none."""
    file = run_dir / NAME
    if file.is_file():  # reading a pipe would never end
        with suppress(OSError, ValidationError):
            return TypeAdapter(Live).validate_json(file.read_bytes())
    return Live()


class LiveFiles:
    """Writes a run's state now and then. Only the driver's thread uses it."""

    def __init__(self, run_dir: Path, bus: Bus, earlier: Sequence[Served] = ()) -> None:
        """`earlier`: rows of earlier calls' engines."""
        self._run_dir = run_dir
        self._bus = bus
        self._earlier = earlier
        self._history = read_history(run_dir)
        self._written: float | None = None

    def poll(self, served: Callable[[], Sequence[Served]]) -> None:
        """Write, at most every few seconds. Raises ResurfaceError if another driver
        took over, but no disk's error."""
        now = self._bus.clock()
        if self._written is not None and now - self._written < _EVERY_SECONDS:
            return
        self._written, rows = now, served()
        document = asdict(live_of(self._bus.state, rows, now))
        self._write(NAME, json_text(document))
        self.write_metrics("running", rows)

    def write_metrics(self, run: State, served: Sequence[Served]) -> None:
        """Raises as `poll`. `served`: the rows of this call's engines."""
        state, rows = self._bus.state, [*self._earlier, *served]
        done = 0
        for part, items in state.planned.items():
            done += min(state.done.get(part, 0), items)
        engines = [each.state for each in state.engines.values()]
        seconds = self._history.seconds + self._bus.clock() - state.started
        text = _TEMPLATES.get_template(f"{METRICS}.j2").render(
            done=done,
            planned=sum(state.planned.values()),
            failures=state.failures,
            checkpoints=state.checkpoints(),
            alive=sum(each in _ALIVE for each in engines) if run == "running" else 0,
            counts=state.counts + Counter(self._history.counts),
            tokens={
                "prompt": sum(row.prompt_tokens for row in rows),
                "generated": sum(row.generated_tokens for row in rows),
                "cached": sum(row.cached_tokens for row in rows),
            },
            seconds=round(seconds, 3),
            states={name: int(name == run) for name in get_args(State)},
        )
        self._write(METRICS, text)

    def _write(self, name: str, text: str) -> None:
        with suppress(InputError, OSError):
            write_atomically(self._run_dir / name, text.encode())
