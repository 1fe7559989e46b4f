"""Where the wall time of a pass goes, beyond what the machine needs at its measured peak (the roofline)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WallTime:
    """Seconds, none of them negative; the four parts sum to the wall time, the last three to the gap."""

    roofline: float  # the fewest tokens at the measured peak
    unneeded_tokens: float  # engine time of tokens that were computed beyond the fewest
    engine: float  # what the engine took for the fewest tokens beyond the roofline
    driver: float  # outside of engine steps: the engine waits, questions are tokenised, records are written
    above_roofline: bool  # the engine was faster than the roofline, so the measured peak is too low

    @property
    def wall(self) -> float:
        return self.roofline + self.unneeded_tokens + self.engine + self.driver

    def shares(self) -> dict[str, float]:
        """The parts as shares of the wall time."""
        parts = {name: getattr(self, name) for name in ("roofline", "unneeded_tokens", "engine", "driver")}
        return {name: round(seconds / self.wall, 4) for name, seconds in parts.items()}

    def lines(self) -> list[str]:
        """The shares as a block to read."""
        said = {
            "roofline": "the fewest tokens at the machine's measured peak",
            "unneeded_tokens": "tokens that need not have been computed",
            "engine": "the engine, slower than the peak on those that must",
            "driver": "the driver: all that is no engine step (waiting, tokens, writing)",
        }
        shares = self.shares()
        lines = [f"our wall time, one round of {self.wall:.3f} s:"]
        lines += [f"{100 * shares[name]:6.1f} %  {meaning}" for name, meaning in said.items()]
        if self.above_roofline:
            lines.append("the engine beat the roofline: the peak was measured too low, by a busy machine perhaps")
        return lines


def wall_time(*, wall: float, busy: float, roofline: float, fewest: int, computed: int) -> WallTime:
    """Split `wall` seconds, in `busy` of which the engine computed `computed` token forwards, `fewest` of them needed.

    All tokens count alike: each takes the mean engine time of a token. A roofline above what the engine took for the
    fewest tokens, or above the wall time, is cut to the former, and `above_roofline` says so: a measured peak is a
    guide, and what was done in that time could be done in it.
    """
    busy = min(busy, wall)
    needed = busy * fewest / computed if fewest < computed else busy
    return WallTime(
        roofline=min(roofline, needed),
        unneeded_tokens=busy - needed,
        engine=needed - min(roofline, needed),
        driver=wall - busy,
        above_roofline=roofline > needed,
    )
