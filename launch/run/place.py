"""Where a run directory can be."""

from __future__ import annotations

from pathlib import Path

from evaluator.errors import InputError

_LEASE = {".lock", ".lease"}


def need_place(path: Path) -> None:
    """Raises InputError for what can never be a run directory: a file, a path below one, a directory of other things.

    Commands call it before they read models and tasks, so this module imports nothing heavy.
    """
    nearest = nearest_existing(path)
    if not nearest.is_dir():
        raise InputError(f"{path}: --out: {nearest} is a file, not a directory")
    # A driver that ended before it wrote anything has left the files of its lease.
    if path.is_dir() and not (path / "run.json").exists() and any(each.name not in _LEASE for each in path.iterdir()):
        raise InputError(f"{path}: --out exists and is not a run directory (it has no run.json)")


def nearest_existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
