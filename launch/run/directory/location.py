"""Where a run directory can be."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from evaluator.core.errors import InputError

_LEASE = {".lock", ".lease"}


def need_place(path: Path) -> None:
    """Raises InputError for what can never be a run directory: a file, a path below one, a directory of other things.

    Commands call it before they read models and tasks, so this module imports nothing heavy.
    """
    nearest = nearest_existing(path)
    if not nearest.is_dir():
        raise InputError(f"{path}: --out: {nearest} is a file, not a directory")
    # A driver that ended before it wrote anything has left the files of its lease; one whose directory was removed
    # under it, folders without a file.
    if path.is_dir() and not (path / "run.json").exists() and not _is_empty(path, _LEASE):
        raise InputError(f"{path}: --out exists and is not a run directory (it has no run.json)")


def _is_empty(folder: Path, but: Collection[str] = ()) -> bool:
    """Whether nothing lies there but empty folders, and what is in `but`. False where that cannot be seen."""
    try:
        return all(
            each.name in but or (each.is_dir() and not each.is_symlink() and _is_empty(each))
            for each in folder.iterdir()
        )
    except OSError:
        return False


def nearest_existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
