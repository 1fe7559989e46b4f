"""`RUN/metrics.prom`: the counts of a run as Prometheus text, for the textfile collector
of a node exporter. The driver writes it every few seconds, and the command at its end."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import get_args

from jinja2 import Environment, FileSystemLoader

from evaluator.core.errors import InputError
from evaluator.core.files import write_atomically
from launch.run.events import State
from launch.run.state import RunState

NAME = "metrics.prom"
_ALIVE = ("idle", "loading", "evaluating")
_TEMPLATES = Environment(  # noqa: S701  (text for Prometheus, not HTML)
    loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True
)


def write_metrics(run_dir: Path, state: RunState) -> None:
    """Raises ResurfaceError if another driver took over, but no disk's error."""
    run, planned = state.run, state.planned
    done = sum(min(state.done.get(part, 0), planned[part]) for part in planned)
    engines = [each.state for each in state.engines.values()]
    rows = state.served.values()
    text = _TEMPLATES.get_template(f"{NAME}.j2").render(
        done=done,
        planned=sum(planned.values()),
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
