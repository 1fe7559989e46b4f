"""`RUN/metrics.prom`: the counts of a run as Prometheus text, for the textfile collector
of a node exporter. The driver writes it every few seconds, and the command at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

from jinja2 import Environment, FileSystemLoader

from evaluator.core.errors import InputError
from evaluator.core.files import write_atomically
from evaluator.store.run_json import Served
from launch.run.events import State
from launch.run.state import Bus, RunState

NAME = "metrics.prom"
_EVERY_SECONDS = 3.0
_ALIVE = ("idle", "loading", "evaluating")
_TEMPLATES = Environment(  # noqa: S701  (text for Prometheus, not HTML)
    loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True
)


class Metrics:
    """Writes a working run's state now and then. Only the driver's thread uses it."""

    def __init__(self, run_dir: Path, bus: Bus, earlier: Sequence[Served] = ()) -> None:
        """`earlier`: rows of earlier calls' engines."""
        self._run_dir = run_dir
        self._bus = bus
        self._earlier = earlier
        self._written: float | None = None

    def poll(self, served: Callable[[], Sequence[Served]]) -> None:
        """Write, at most every few seconds. Raises ResurfaceError if another driver
        took over, but no disk's error."""
        now = self._bus.clock()
        if self._written is None or now - self._written >= _EVERY_SECONDS:
            self._written = now
            rows = [*self._earlier, *served()]
            write_metrics(
                self._run_dir, "running", replace(self._bus.state, now=now), rows
            )


def write_metrics(
    run_dir: Path, run: State, state: RunState, rows: Sequence[Served]
) -> None:
    """Raises as `Metrics.poll`. `rows`: of all calls' engines."""
    done = 0
    for part, items in state.planned.items():
        done += min(state.done.get(part, 0), items)
    engines = [each.state for each in state.engines.values()]
    text = _TEMPLATES.get_template(f"{NAME}.j2").render(
        done=done,
        planned=sum(state.planned.values()),
        failures=len(state.failures),
        checkpoints=state.checkpoints(),
        alive=sum(each in _ALIVE for each in engines) if run == "running" else 0,
        counts=state.counts,
        tokens={
            "prompt": sum(row.prompt_tokens for row in rows),
            "generated": sum(row.generated_tokens for row in rows),
            "cached": sum(row.cached_tokens for row in rows),
        },
        seconds=round(state.seconds, 3),
        states={name: int(name == run) for name in get_args(State)},
    )
    with suppress(InputError, OSError):
        write_atomically(run_dir / NAME, text.encode())
