"""Who may write a run directory: the decisions, without files, clocks or processes.

Each driver that takes a directory claims the next number. The latest claim is the lease; a claim is given back
(`released`), or its owner is gone, or it falls silent: its count of beats has not changed for a bounded time by the
waiter's own clock. No two machines' clocks are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pruning.output.owner import Owner, Sight

Decision = Literal["take", "refuse", "watch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often an owner gives a sign of life, and how many in a row may be missed."""

    beat_seconds: float = 5.0
    missed: int = 9  # a shared file system may show them late
    look_seconds: float = 0.5  # between two looks of a waiter

    @property
    def silence(self) -> float:
        """Seconds without a beat after which an owner has lost its lease."""
        return self.beat_seconds * self.missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One driver's claim to a run directory."""

    number: int
    token: str  # no other claim has it: two that were made at the same moment are told apart
    owner: Owner | None  # None: the file could not be read
    locked: bool  # whether its owner also got the file lock
    released: bool = False


def decide(last: Claim | None, sight: Sight, locked_by_another: bool) -> Decision:
    """What to do about the latest claim. `sight`: what can be seen of its owner; `locked_by_another`: the file lock is.

    The file lock works at once, but not on every file system, and a process that is stopped keeps it. It decides only
    where nobody can have it who has a claim: then a process is just claiming the directory.
    """
    if last is None or last.released or sight == "gone":
        unexplained = locked_by_another and (last is None or last.locked)
        return "refuse" if unexplained else "take"
    return "refuse" if sight == "running" else "watch"


class Watch:
    """Looks for signs of life of an owner that is stopped, or on another machine."""

    def __init__(self, pace: Pace, *, now: float, beats: int | None) -> None:
        """`now`: seconds by the waiter's clock; `beats`: the owner's count, None where there is none yet."""
        self._pace = pace
        self._beats = beats
        self._last = now
        self._silent = 0.0

    def look(self, *, now: float, beats: int | None) -> Decision:
        """refuse: it lives; take: it was silent for too long; watch: neither is certain."""
        if beats != self._beats:
            return "refuse"
        # A waiter that was itself paused has not looked meanwhile: what is more than a few looks does not count.
        self._silent += min(now - self._last, 4 * self._pace.look_seconds)
        self._last = now
        return "take" if self._silent >= self._pace.silence else "watch"
