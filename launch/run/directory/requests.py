"""What others ask of a run's driver, by files that it looks for: `RUN/STOP` and
`RUN/PAUSE`. They work from every machine that shares the run directory."""

from pathlib import Path

STOP, PAUSE = "STOP", "PAUSE"


def forget(run_dir: Path) -> None:
    """Remove what was asked of an earlier call."""
    for name in (STOP, PAUSE):
        (run_dir / name).unlink(missing_ok=True)


def is_stopped(run_dir: Path) -> bool:
    return (run_dir / STOP).exists()


def is_paused(run_dir: Path) -> bool:
    return (run_dir / PAUSE).exists()
