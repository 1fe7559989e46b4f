"""Run directories that are opened, and closed again."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launch.run.directory.lock import hold
from launch.run.directory.rundir import RunDirectory


@contextmanager
def opened(path: Path, *given: Any, **more: Any) -> Iterator[RunDirectory]:
    """Hold a run directory within the block. `given` and `more`: as RunDirectory
    takes them after the lock."""
    with hold(path) as lock:
        yield RunDirectory(path, lock, *given, **more)
