"""When is something that shows no progress taken for hung? Decided without clocks: callers say what time it is.

Nobody knows beforehand how long a step takes on somebody else's model and machine. So the limit is a number of minutes,
and more where longer pauses have been seen that ended well.
"""

from __future__ import annotations

from dataclasses import dataclass

_TIMES = 5.0  # the longest pause that ended well; a longer one than this is no pause


class Hung(Exception):
    """Something has shown no progress for too long."""


@dataclass(slots=True)
class Watch:
    """Watches one kind of work, of one engine or of several. Times are of any one clock, in seconds."""

    least: float  # silence is never a hang before this
    longest: float = 0.0  # pause between two signs of progress so far
    _since: float | None = None  # the last sign of progress; None: nothing is going on

    @property
    def limit(self) -> float:
        """The silence that is taken for a hang."""
        return max(self.least, _TIMES * self.longest)

    def begin(self, now: float) -> None:
        """Work begins."""
        self._since = now

    def moved(self, now: float) -> None:
        """A sign of progress."""
        if self._since is not None:
            self.longest = max(self.longest, now - self._since)
        self._since = now

    def end(self) -> None:
        """Nothing is going on any more, however it ended; what is not followed by progress was no pause."""
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
