"""What `demo`, `sweep` and `eval` share: check, run, report."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from launch.commands.terminal import console
from launch.run.here import check_here
from launch.run.place import need_place
from launch.sweep.config import SweepConfig


def run_and_report(config: SweepConfig, out: Path) -> None:
    """Do what `config` asks for and `out` does not hold yet, then rebuild the report there.

    Raises InputError for what the user can mend, ResurfaceError when the work itself failed.
    """
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

            outcome = run_sweep(prepared, held.enter_context(open_run(prepared, out, progress)), progress)
        from launch.commands.summary import finish

        finish(console, out, outcome)
