"""Who writes a directory: a file in it says so, on any file system and to every node of a cluster.

Locks are no help there: on shared file systems flock holds within one node, or not at all. On the same machine the
process is looked for. Of a process elsewhere (another node, another container) only signs of life can be seen: while it
writes, it touches its file every few seconds, and one that no longer does is taken for dead. No clocks are compared.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

OWNER = "owner.json"
_BEAT_SECONDS = 5.0  # between two signs of life
_SILENCE_SECONDS = 45.0  # without one, after which an owner is dead; a shared file system may show them late
_LOOK_SECONDS = 0.5

Sight = Literal["running", "stopped", "gone", "elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, by what no other one in the cluster has."""

    host: str
    machine: str  # one start of one machine, and the processes that see each other's ids there
    pid: int
    started: str  # by the machine's count; ids are used again

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    return Owner(host=platform.node(), machine=_machine(), pid=os.getpid(), started=_started(os.getpid()) or "")


def sight(owner: Owner) -> Sight:
    """What this process can see of another one. Of a process elsewhere that is nothing."""
    if owner.machine != _machine():
        return "elsewhere"
    found = _stat(owner.pid)
    if found is None or found[1] != owner.started:
        return "gone"
    return "stopped" if found[0] in "Tt" else "running"


@contextmanager
def owned_directory(path: Path) -> Iterator[None]:
    """Make a directory that says from its first moment who writes it, and go on saying so within the block.

    Raises OSError if it cannot be made.
    """
    unseen = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        unseen.chmod(0o777 & ~_umask())
        (unseen / OWNER).write_text(json.dumps(asdict(this_process())), encoding="utf-8")
        unseen.rename(path)
    except BaseException:  # a full disk, or Ctrl-C
        shutil.rmtree(unseen, ignore_errors=True)
        raise
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(path / OWNER, ended), name="owner-beat", daemon=True)
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join()


def living_owner(directory: Path) -> Owner | None:
    """Who writes a directory; None if nobody does any more. It may take a while to see whether a node is dead."""
    owner = _read(directory / OWNER)
    if owner is None:
        return None
    if owner.machine == _machine():
        return None if sight(owner) == "gone" else owner
    return owner if _shows_life(directory / OWNER) else None


def _beat(file: Path, ended: threading.Event) -> None:
    while not ended.wait(_BEAT_SECONDS):
        with suppress(OSError):  # the directory has its final name, or a file server is away for a moment
            os.utime(file)


def _shows_life(file: Path) -> bool:
    first, deadline = _touched(file), time.monotonic() + _SILENCE_SECONDS
    while time.monotonic() < deadline:
        now = _touched(file)
        if now is None:
            return False
        if now != first:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _touched(file: Path) -> int | None:
    """When a file was last touched, by its server's clock; None if it is gone."""
    with suppress(OSError), file.open("rb") as opened:  # opened anew: a node may keep what it knew of a file
        return os.fstat(opened.fileno()).st_mtime_ns
    return None


def _read(file: Path) -> Owner | None:
    with suppress(OSError, ValueError, TypeError):
        return Owner(**json.loads(file.read_bytes()))
    return None


def _machine() -> str:
    """Differs between machines, starts of one, and containers that do not see each other's processes."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process started, in ticks since the machine did; None if there is no such process."""
    found = _stat(pid)
    return None if found is None else found[1]


def _stat(pid: int) -> tuple[str, str] | None:
    """A process's state, a letter, and when it started; None if there is none, or it is dead."""
    with suppress(OSError):
        # The second field is a name in parentheses that may hold anything; the start is the 22nd.
        state, *fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
        return None if state in "ZX" else (state, fields[18])
    return None


def _umask() -> int:
    """This process's, which can only be read by setting it."""
    current = os.umask(0o022)
    os.umask(current)
    return current
