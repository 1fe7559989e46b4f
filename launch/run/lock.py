"""One driver at a time writes a run directory."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from evaluator.errors import InputError


class RunLock:
    """Held by the one driver that writes a run directory; the kernel frees it however the driver ends."""

    def __init__(self, run_dir: Path) -> None:
        self._file: IO[str] = (run_dir / ".lock").open("a")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise InputError(f"{run_dir}: another resurface process is writing this run directory") from error

    def release(self) -> None:
        self._file.close()
