"""Is the process that does some work alive, and does it make progress? One module
for runs, prune jobs and engines.

- The `Owner` of a directory (`lease.py`) is looked up by its process id on the same
  machine. An owner elsewhere shows signs of life only: it counts up its file of beats
  every few seconds. No two machines' clocks are compared.
- A `Heartbeat` is a counter that work raises. A `HangWatch` decides that work hangs
  when the counter stands still."""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Sight = Literal["running", "stopped", "gone", "elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that writes a directory."""

    host: str
    # one start of one machine, and the processes that see each other's ids there
    machine: str
    pid: int
    started: str  # by the machine's count; ids are used again

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    found = _stat(os.getpid())
    return Owner(
        host=platform.node(),
        machine=_machine(),
        pid=os.getpid(),
        started=found[1] if found else "",
    )


def sight(owner: Owner) -> Sight:
    """What this process can see of another one. Of a process elsewhere that is
    nothing."""
    if owner.machine != _machine():
        return "elsewhere"
    found = _stat(owner.pid)
    if found is None or found[1] != owner.started:
        return "gone"
    return "stopped" if found[0] in "Tt" else "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often an owner gives a sign of life, and how many in a row may be missed."""

    beat_seconds: float = 5.0
    missed: int = 5  # a shared file system may show them late
    look_seconds: float = 0.5  # between two looks of a waiter

    @property
    def silence(self) -> float:
        """Seconds without a beat after which an owner has lost its lease."""
        return self.beat_seconds * self.missed


@dataclass(slots=True)
class Heartbeat:
    """Work raises it after each piece of bounded size. Only a change matters: two
    threads at once may lose a beat."""

    beats: int = 0

    def beat(self) -> None:
        self.beats += 1


HEARTBEAT = Heartbeat()  # of this process, which works on one job at a time

_TIMES = 5.0  # the longest pause that ended well; a longer silence is a hang


class Hung(Exception):
    """Something has shown no progress for too long."""


@dataclass(slots=True)
class HangWatch:
    """Watches one kind of work, of one engine or of several. Times are of any one
    clock, in seconds."""

    least: float  # silence is never a hang before this
    longest: float = 0.0  # pause between two signs of progress so far
    _since: float | None = None  # the last sign of progress; None: nothing is going on

    @property
    def limit(self) -> float:
        """The silence that is taken for a hang."""
        return max(self.least, _TIMES * self.longest)

    def begin(self, now: float) -> None:
        self._since = now

    def moved(self, now: float) -> None:
        """A sign of progress."""
        if self._since is not None:
            self.longest = max(self.longest, now - self._since)
        self._since = now

    def end(self) -> None:
        """Work ended, well or badly. A silence before the end does not count as a
        pause."""
        self._since = None

    def silence(self, now: float) -> float:
        """Seconds since the last sign of progress."""
        return 0.0 if self._since is None else now - self._since

    def hung(self, now: float) -> bool:
        return self.silence(now) > self.limit

    def check(self, now: float) -> None:
        """Raises Hung."""
        if self.hung(now):
            raise Hung(f"no sign of progress for {self.silence(now):.0f} s")


def _machine() -> str:
    """Differs between machines, starts of one, and containers that do not see each
    other's processes."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        )
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _stat(pid: int) -> tuple[str, str] | None:
    """A process's state, a letter, and its start in ticks since the machine's; None
    if there is none, or it is dead."""
    with suppress(OSError):
        # The second field is a name in parentheses that may hold anything; the start is
        # the 22nd.
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else (state, fields[18])
    return None
