"""Checks where a run directory may be."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from evaluator.core.errors import InputError

_LEASE = {".lock", ".lease"}


def need_place(path: Path) -> None:
    """Raises InputError if a path can never be a run directory: a file, a path below one, or a foreign directory.

    Commands call it before they read models and tasks, so this module imports nothing heavy.
    """
    nearest = nearest_existing(path)
    if not nearest.is_dir():
        raise InputError(f"{path}: --out: {nearest} is a file, not a directory")
    # A driver that ended before its first result leaves the files of its lease. If its directory was removed meanwhile,
    # it leaves folders without files.
    if path.is_dir() and not (path / "run.json").exists() and not _is_empty(path, _LEASE):
        raise InputError(f"{path}: --out exists and is not a run directory (it has no run.json)")


def _is_empty(folder: Path, but: Collection[str] = ()) -> bool:
    """Whether a folder holds only empty folders and the names in `but`. False if that cannot be read."""
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
