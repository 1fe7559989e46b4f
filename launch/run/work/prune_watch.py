"""Checks whether a prune task makes progress or hangs, by a file that its process writes and the driver reads.

A Ray task cannot be queried while it runs. The file names the process, so that the driver can end it if it hangs. The
file also holds the count of its heartbeats: a thread writes the file, and the work raises the count.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import ray

from evaluator.core.liveness import HEARTBEAT, HangWatch
from launch.run.decide.assignments import Where

_TELL_SECONDS = 2.0  # between two checks for progress


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """Within the block, a thread writes this process's place and its heartbeats to `path`."""
    where = asdict(
        Where(node=platform.node(), node_id=ray.get_runtime_context().get_node_id(), device="", pid=os.getpid())
    )
    ended = threading.Event()

    def tell() -> None:
        told = None
        while True:
            if told != (beats := HEARTBEAT.beats):
                with contextlib.suppress(OSError):  # a file server may be unreachable for a moment
                    path.write_text(json.dumps({"where": where, "beats": beats}), encoding="utf-8")
                    told = beats
            if ended.wait(_TELL_SECONDS):
                return

    teller = threading.Thread(target=tell, name="prune-pulse", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        with contextlib.suppress(OSError):
            path.unlink()


@dataclass(slots=True)
class TaskWatch:
    """The driver's side: one task's last state, and the time without progress since."""

    path: Path
    load_seconds: float  # from its first sign of life until its first step: it reads the configuration
    stall_seconds: float  # between two steps; more after longer pauses that ended well
    where: Where | None = None  # None: it waits for its place, or has shown no sign of life yet
    _beats: int = 0
    _stepped: bool = False
    _watch: HangWatch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = HangWatch(self.load_seconds)
        self.clear()

    def clear(self) -> None:
        """Remove the file of a killed process."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def check(self, now: float) -> None:
        """Read the current state. Raises Hung."""
        found = self._read()
        if found is not None:
            self._heard(*found, now)
        self._watch.check(now)

    def again(self, now: float) -> None:
        """Start the time anew, because ending the process may take a while too."""
        self._watch.begin(now)

    def _heard(self, where: Where, beats: int, now: float) -> None:
        if self.where is None:
            self.where, self._beats = where, beats
            self._watch.begin(now)
        elif beats != self._beats:
            if not self._stepped:
                self._watch = HangWatch(self.stall_seconds)
            self._stepped, self._beats = True, beats
            self._watch.moved(now)

    def _read(self) -> tuple[Where, int] | None:
        """None if the file is missing, or just being written."""
        try:
            said = json.loads(self.path.read_bytes())
            return Where(**said["where"]), int(said["beats"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
