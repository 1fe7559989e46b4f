"""How long a run waits for engines that have no process."""

from __future__ import annotations

import threading
import time

from evaluator.core.errors import ResurfaceError


class Patience:
    """How long a run waits for its engines; for that, which of them have a process. Thread-safe."""

    def __init__(self, *, placement_seconds: float, load_seconds: float, stall_seconds: float) -> None:
        """`placement_seconds`: for which no engine may have a process; the others: see `Watch.least`."""
        self.load_seconds = load_seconds
        self.stall_seconds = stall_seconds
        self._seconds = placement_seconds
        self._engines: set[int] = set()
        self._lost = 0.0  # when one last lost its process
        self._lock = threading.Lock()

    def add(self, engine: int) -> None:
        with self._lock:
            self._engines.add(engine)

    def remove(self, engine: int) -> None:
        with self._lock:
            if engine in self._engines:
                self._engines.remove(engine)
                self._lost = time.monotonic()

    def check(self, gpus: int, since: float) -> None:
        """Raises ResurfaceError when no engine, of `gpus` GPUs each, has had a process for too long.

        `since`: the time.monotonic() at which the one that asks began to wait.
        """
        with self._lock:
            waited = time.monotonic() - max(since, self._lost)
            if self._engines or waited <= self._seconds:
                return
        needs = f"{gpus} free GPU{'s' if gpus > 1 else ''} on one node" if gpus else "a process"
        raise ResurfaceError(
            f"no engine has found {needs} for {waited:.0f} s (resources.placement_seconds): others hold them, or "
            "nodes are gone; finished work is kept, the same command resumes"
        )
