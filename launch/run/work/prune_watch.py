"""Does a prune task make progress, or does it hang? Its process writes that to a file, which the driver reads.

A Ray task cannot be queried while it runs. The file names the process, so that one that hangs can be ended. It also
holds the count of its heartbeats: a thread writes the file, and the work raises the count.
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

_TELL_SECONDS = 2.0  # between two looks at whether the work has got on


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """Within the block, `path` says where this process is and how far it has got."""
    where = asdict(
        Where(node=platform.node(), node_id=ray.get_runtime_context().get_node_id(), device="", pid=os.getpid())
    )
    ended = threading.Event()

    def tell() -> None:
        told = None
        while True:
            if told != (beats := HEARTBEAT.beats):
                with contextlib.suppress(OSError):  # a file server may be away for a moment
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
    """The driver's side: what has been read of one task, and since when there was nothing new."""

    path: Path
    load_seconds: float  # from its first sign of life until its first step: it reads the configuration
    stall_seconds: float  # between two steps; more where longer pauses have ended well
    where: Where | None = None  # None: it waits for its place, or has given no sign of life yet
    _beats: int = 0
    _stepped: bool = False
    _watch: HangWatch = field(init=False)

    def __post_init__(self) -> None:
        self._watch = HangWatch(self.load_seconds)
        self.clear()

    def clear(self) -> None:
        """Remove what a process that was killed has left."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def check(self, now: float) -> None:
        """Read what is new. Raises Hung."""
        found = self._read()
        if found is not None:
            self._heard(*found, now)
        self._watch.check(now)

    def again(self, now: float) -> None:
        """It is being ended, which may take a while, too."""
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
        """None where it says nothing, or is just being written."""
        try:
            said = json.loads(self.path.read_bytes())
            return Where(**said["where"]), int(said["beats"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
