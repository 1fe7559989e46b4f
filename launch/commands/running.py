"""What `demo`, `sweep` and `eval` share: check, run, report, and say what could not be done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from evaluator.core.errors import one_line
from launch.commands.terminal import console, errors
from launch.run.here import check_here
from launch.run.place import need_place
from launch.run.termination import stop_in_order
from launch.sweep.config import SweepConfig

if TYPE_CHECKING:
    from evaluator.store.failures import Failure
    from launch.run.tracking import Tracker, Tracking
    from launch.sweep.preflight import Prepared

WITH_FAILURES = 3  # exit code
_NAMED = 3  # checkpoints


def run_and_report(config: SweepConfig, out: Path, track: str | None = None) -> None:
    """Do what `config` asks for and `out` does not hold yet, then rebuild the report there.

    `track`: the experiment tracker that is told of each checkpoint as it ends.

    Raises InputError for what the user can mend, ResurfaceError when the work itself failed; typer.Exit with code 3
    when only a part of it did.
    """
    tracker = None
    if track is not None:
        from launch.run.trackers import tracker_of

        tracker = tracker_of(track)
    stop_in_order()
    need_place(out)
    check_here(config)
    from launch.run.progress import Progress
    from launch.sweep.preflight import prepare

    with ExitStack() as held:  # the run directory, until the report is written too
        with Progress(console) as progress:
            progress.stage("checking models, tasks and settings")
            prepared = prepare(config, out)
            for note in prepared.short_languages():
                progress.warned(note)
            for note in prepared.served:
                progress.noted(note)
            from launch.run.driver import open_run, run_sweep  # with Ray: only a sweep that can be done needs it

            directory = held.enter_context(open_run(prepared, out, progress))
            tracking = None if tracker is None else held.enter_context(_tracking(tracker, prepared, out))
            ended = (lambda: None) if tracking is None else tracking.look
            outcome = run_sweep(prepared, directory, progress, ended)
        from launch.commands.summary import finish

        finish(console, out, outcome)
        if tracking is not None:
            tracking.finish([*sorted((out / "tables").glob("*.csv")), out / "report" / "index.html"])
            console.print(f"telling {tracking.name}")
    if outcome.failures:
        where = out / "tables" / "failures.csv"
        line = f"{summary(outcome.failures)}; see {where}; the same command tries only that again"
        errors.print(f"[red]not done:[/red] {escape(line)}", highlight=False)
        raise typer.Exit(WITH_FAILURES)


def _tracking(tracker: Tracker, prepared: Prepared, out: Path) -> Tracking:
    from launch.run.tracking import Tracking, flattened, tracked

    document = prepared.config.model_dump(mode="json", exclude_defaults=True)

    def warn(text: str) -> None:
        console.print(f"[yellow]warning:[/yellow] {escape(text)}", highlight=False, soft_wrap=True)

    return Tracking(tracker, out, tracked(prepared), flattened(document), warn)


def summary(failures: Sequence[Failure]) -> str:
    """What was not done, in one line: each checkpoint with its first reason, as many as are easily read."""
    first: dict[str, Failure] = {}
    for failure in failures:
        first.setdefault(failure.checkpoint, failure)
    named = [f"{name} ({each.stage}: {one_line(each.reason)})" for name, each in first.items()]
    count = "1 checkpoint" if len(named) == 1 else f"{len(named)} checkpoints"
    more = f", and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return f"{count}, wholly or in part: {', '.join(named[:_NAMED])}{more}"
