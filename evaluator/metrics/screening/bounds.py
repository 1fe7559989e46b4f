"""A mean of differences, each -1, 0 or 1, and what it surely exceeds: exact at any number of items.

Of n items the one checkpoint alone is right on `plus`, the other alone on `minus`. With P(1) = p and P(-1) = m, the
mean is p - m; how often they differ, p + m, is a nuisance, over which the largest p-value is taken: within its own
Clopper-Pearson interval of error BETA times the level, which is taken off the level (Berger and Boos, JASA 89, 1994).
Outcomes are ordered by their distance from the margin in standard errors. McNemar's exact test is of a mean of 0 only;
a gate's threshold is another.

For n items that were drawn without replacement, or spread over strata, it errs on the safe side.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import bdtrc, betaincinv, gammaln, xlog1py, xlogy

from evaluator.metrics.intervals import Floats, ItemNumbers

BETA = 0.1
_GRID = 33  # values of the nuisance
_HALVINGS = 20  # of a bound: to a millionth


@lru_cache(maxsize=100_000)
def surely_above(plus: int, minus: int, n: int, margin: float, level: float) -> bool:
    """Whether so large a difference is seen with a probability of at most `level` wherever the mean is at most
    `margin` (from -1 to 1)."""
    seen, differ = plus - minus, plus + minus
    if n == 0 or seen <= n * margin:
        return False
    return _largest_p(seen, differ, n, margin, level) <= (1 - BETA) * level


def lower_bound(plus: int, minus: int, n: int, level: float) -> float:
    """The largest mean that is surely exceeded: the one-sided bound of confidence 1 - level; -1 where nothing is."""
    low, high = -1.0, (plus - minus) / n if n else -1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if surely_above(plus, minus, n, middle, level):
            low = middle
        else:
            high = middle
    return low


def bounds(plus: int, minus: int, n: int, level: float) -> tuple[float, float]:
    """Both one-sided bounds of the mean, each of confidence 1 - level."""
    return lower_bound(plus, minus, n, level), -lower_bound(minus, plus, n, level)


def _largest_p(seen: int, differ: int, n: int, margin: float, level: float) -> float:
    """The largest probability of so much, over the plausible shares of items that differ (a grid of them)."""
    error = BETA * level / 2
    low = float(betaincinv(differ, n - differ + 1, error)) if differ else 0.0
    high = float(betaincinv(differ + 1, n - differ, 1 - error)) if differ < n else 1.0
    low = max(low, -margin)  # a mean of the margin needs so many that differ
    return float(_tail(seen, differ, n, margin, np.linspace(low, high, _GRID)).max()) if low <= high else 0.0


def _tail(seen: int, differ: int, n: int, margin: float, shares: Floats) -> Floats:
    """The probability of a difference that is as many standard errors above the margin as one of `seen` is where
    `differ` items differ, for each share of items that may differ.

    The mean is the margin, or where too few differ for that, as large as they allow.
    """
    counts = np.arange(n + 1)
    # plus - minus must be at least this where so many differ; and plus half of the sum of both.
    least = n * margin + (seen - n * margin) * _error(counts, n, margin) / _error(differ, n, margin)
    plus = np.maximum(np.ceil((counts + least) / 2 - 1e-9), 0)
    shares = np.clip(shares, 1e-12, 1.0)[:, None]
    chance = (shares + np.minimum(margin, shares)) / (2 * shares)  # that one that differs is a plus
    reached = np.where(plus > 0, bdtrc(np.maximum(plus - 1, 0), counts, chance), 1.0)
    return np.asarray((_binomial(counts, n, shares) * np.where(plus > counts, 0.0, reached)).sum(axis=1))


def _error(differ: ItemNumbers | int, n: int, margin: float) -> Floats:
    """The standard error of plus - minus where so many differ, or as many as the margin needs for a mean; one more
    counts, so that it is never 0."""
    return np.asarray(np.sqrt(np.maximum(differ, n * abs(margin)) - n * margin**2 + 1.0))


def _binomial(count: ItemNumbers, n: int, share: Floats) -> Floats:
    chosen = gammaln(n + 1) - gammaln(count + 1) - gammaln(n - count + 1)
    return np.asarray(np.exp(chosen + xlogy(count, share) + xlog1py(n - count, -share)))
