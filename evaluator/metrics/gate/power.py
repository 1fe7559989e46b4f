"""How small an effect so many items can show, and how many would be enough.

    MDE = (z_(1 - a/2) + z_(1 - b)) * sqrt(rho_d / m)

is the smallest difference of two accuracies on the same m items that a test of level a finds with probability 1 - b;
rho_d is the share of items on which the two differ (arXiv 2605.28873). It takes items as independent. Where they share
contexts, the bootstrap's standard error is the larger one, and is what counts.
"""

from __future__ import annotations

import math

from scipy.special import bdtrc, ndtri

from evaluator.metrics.intervals import ALPHA, Interval

_Z = float(ndtri(1 - ALPHA / 2))


def detectable(discordant: int, n: int, interval: Interval, power: float) -> float:
    """The MDE of n items (at least one) of which `discordant` differ. None seen is not none: at least one is assumed.

    `interval` is that of the difference: half of its width over z is a standard error.
    """
    error = math.sqrt(max(discordant, 1) / n / n)
    low, high = interval
    if low is not None and high is not None:
        error = max(error, (high - low) / (2 * _Z))
    return (_Z + float(ndtri(power))) * error


def enough_items(detectable: float, n: int, tolerance: float) -> int | None:
    """With how many items the MDE would be the tolerance; None: no number is enough for a tolerance of 0."""
    return math.ceil(n * (detectable / tolerance) ** 2) if tolerance > 0 else None


def enough_for_share(tolerance: float) -> int | None:
    """Of how many items none may be affected for Wilson's upper bound to stay within the tolerance."""
    return math.ceil(_Z * _Z * (1 - tolerance) / tolerance) if tolerance > 0 else None


def may_be_chance(count: int, n: int, share: float, tests: int) -> bool:
    """Whether `count` or more of n items would not be rare if each were one with probability `share`: the exact
    binomial tail, at the level of one side of an interval that `tests` share.

    Wilson's lower bound and the bootstrap's are beyond a small share too often where items are few: 3 of 50 are beyond
    2 % by Wilson, and chance gives as many in 8 of 100 runs.
    """
    return float(bdtrc(count - 1, n, share)) >= ALPHA / 2 / max(tests, 1)


def widened(value: float, interval: Interval, tests: int) -> Interval:
    """A 95 % interval at the level that `tests` of them need together (Bonferroni), by scaling its two sides.

    Of twelve languages one is beyond its own 95 % interval every other time, without any effect.
    """
    low, high = interval
    if low is None or high is None:
        return interval
    wider = float(ndtri(1 - ALPHA / 2 / max(tests, 1))) / _Z
    return value - (value - low) * wider, value + (high - value) * wider
