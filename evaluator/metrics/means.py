"""A mean over items that share contexts: its interval and its p-values, at any level and any number of contexts.

    loss = Mean(base - own, contexts, low=-1)      # an item's value is -1, 0 or 1
    loss.interval()                                # two-sided 95 %
    loss.upper(0.05)                               # one-sided: the mean is below this
    loss.p_at_least(0.02)                          # p-value of "the mean is 0.02 or more"

The bound is Gaffke's for a bounded mean (N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on
the mean of a nonnegative variable", Mathematical Methods of Statistics 14, 2005; E. Learned-Miller and P. Thomas, "A
new confidence interval for the mean of a bounded random variable", 2019, arXiv 1905.06208). One context that shows the
worst joins the contexts that were seen. All of them get random weights that sum to 1 (Dirichlet, each parameter 1). The
p-value is the probability that the weighted mean exceeds the margin.

- Of a rate with one item a context, this is the exact interval of Clopper and Pearson.
- Of a paired difference without a discordant pair, it is the exact bound 1 - level^(1/n).
- Of many contexts, it is the normal interval with a standard error clustered by context.

Wilson's interval covers a rate of 95 % in 91 % of samples of 10 items. Tango's test of a loss of 2 points passes 6.8 %
of such checkpoints at 133 items. Neither knows contexts. `tests/long/test_error_rates.py` measures this bound.

The weighted mean exceeds a margin where sum_j G_j a_j > 0, with G_j ~ Gamma(number of contexts alike). That probability
is an integral of the moment generating function along a line through its saddle point (H. Daniels, Annals of
Mathematical Statistics 25, 1954), which the trapezoidal rule computes to about ten digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betaincinv, ndtri

from evaluator.metrics.intervals import ALPHA, UNDEFINED, Floats, Interval, ItemNumbers

FEWEST = 3  # contexts of an interval
_NODES = 96  # of the integral
_NEGLIGIBLE = 36.0  # -log of what the integral leaves out
_DIGITS = 12  # sums that differ by rounding alone are alike

# Contexts that are alike: sum of the values, what it is divided by, how many contexts.
_Alike = tuple[tuple[float, float, int], ...]


class Mean:
    """The mean of items' values over contexts that are drawn independently of each other.

    `values` are in [low, high], one an item; `contexts` numbers each item's context. With `weights` it is a weighted
    mean. Raises ValueError without an item.
    """

    def __init__(
        self,
        values: Floats,
        contexts: ItemNumbers,
        *,
        low: float = 0.0,
        high: float = 1.0,
        weights: Floats | None = None,
    ) -> None:
        if not len(values):
            raise ValueError("a mean needs an item")
        weights = np.ones(len(values)) if weights is None else weights
        place = np.unique(contexts, return_inverse=True)[1]
        self.n = len(values)
        self._low, self._high = low, high
        self._sums, self._sizes = np.bincount(place, values * weights), np.bincount(place, weights)

    @property
    def contexts(self) -> int:
        """How many independent units there are."""
        return len(self._sums)

    @property
    def value(self) -> float:
        return float(self._sums.sum() / self._sizes.sum())

    def p_at_least(self, margin: float) -> float:
        """The p-value of "the mean is `margin` or more"."""
        return _tail(self._upwards, margin)

    def p_at_most(self, margin: float) -> float:
        """The p-value of "the mean is `margin` or less"."""
        return _tail(self._downwards, -margin)

    def upper(self, level: float) -> float:
        """What the mean is below, with confidence 1 - level."""
        return _bound(self._upwards, level)

    def lower(self, level: float) -> float:
        """What the mean is above, with confidence 1 - level."""
        return -_bound(self._downwards, level) + 0.0  # no -0

    def interval(self, level: float = ALPHA) -> Interval:
        """The two-sided interval of confidence 1 - level; undefined of fewer than `FEWEST` contexts."""
        return (self.lower(level / 2), self.upper(level / 2)) if self.contexts >= FEWEST else UNDEFINED

    @cached_property
    def _upwards(self) -> _Alike:
        return _grouped(self._sums, self._sizes, self._worst(self._sums, self._low, self._high))

    @cached_property
    def _downwards(self) -> _Alike:
        return _grouped(-self._sums, self._sizes, self._worst(-self._sums, -self._high, -self._low))

    def _worst(self, sums: Floats, low: float, high: float) -> tuple[float, float]:
        """The sum and the size of one more context, which shows the worst that a context of mean size may show.

        An item alone shows it in full: `high`. In a context of several items, all of them seldom do. So the worst is the
        largest share of it that any context showed, or the mean share over all that was shown, with one context in full
        added, if that is more.
        """
        usual = 0.0 if low < 0 < high else low
        shown = np.clip((sums / self._sizes - usual) / (high - usual), 0.0, 1.0)
        share = max(float(shown.max()), float((shown @ shown + 1) / (shown.sum() + 1)))
        size = float(self._sizes.mean())
        return (usual + share * (high - usual)) * size, size


class Ratio(Mean):
    """The ratio of two sums over the same items, both of values from 0 to 1: `over` divided by `under`.

    Its upper bound is infinite where the bound of `under` is 0.
    """

    def __init__(self, over: Floats, under: Floats, contexts: ItemNumbers) -> None:
        super().__init__(over, contexts)
        self._items = self._sizes
        self._sizes = np.bincount(np.unique(contexts, return_inverse=True)[1], under)

    def _worst(self, sums: Floats, low: float, high: float) -> tuple[float, float]:
        """Upwards, a context of which only `over` is right; downwards, only `under`."""
        size = float(self._items.mean())
        return (size, 0.0) if high > 0 else (0.0, size)


def _grouped(sums: Floats, sizes: Floats, worst: tuple[float, float]) -> _Alike:
    pairs = np.round(np.stack([np.append(sums, worst[0]), np.append(sizes, worst[1])], axis=1), _DIGITS) + 0.0
    alike, counts = np.unique(pairs, axis=0, return_counts=True)
    return tuple((float(a), float(b), int(count)) for (a, b), count in zip(alike, counts, strict=True))


@lru_cache(maxsize=100_000)
def _bound(alike: _Alike, level: float) -> float:
    """The margin that the weighted mean exceeds with probability `level`."""
    sums, sizes, counts = np.array(alike).T
    unbounded = np.where(sums > 0, np.inf, -np.inf)  # of what is divided by 0
    ratios = np.divide(sums, sizes, out=unbounded, where=sizes > 0)
    most = float(ratios.max())
    if (ratios == most).all():
        return most
    if len(alike) == 2 and sizes[0] == sizes[1]:
        least = float(sums[0] / sizes[0])
        return least + (most - least) * float(betaincinv(counts[1], counts[0], 1 - level))
    z = float(ndtri(1 - level))
    middle = float(counts @ sums / (counts @ sizes))
    error = float(np.sqrt(counts @ (sums - middle * sizes) ** 2) / (counts @ sizes))

    def beyond(margin: float) -> float:
        return float(np.clip(ndtri(_tail(alike, margin)), -40.0, 40.0)) + z

    low, high = middle, middle + z * error
    while beyond(high) > 0:
        low, high = high, high + z * error
        if high >= most:
            return most if beyond(most) >= 0 else _root(beyond, low, most)
        if high > middle + 1e6 * error:
            return float("inf")
    return _root(beyond, low, high)


def _root(beyond: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(beyond, low, high, xtol=1e-12, rtol=1e-10))


def _tail(alike: _Alike, margin: float) -> float:
    """The probability that the weighted mean exceeds `margin`."""
    sums, sizes, counts = np.array(alike).T
    terms = sums - margin * sizes
    return _positive(terms, counts)


def _positive(terms: Floats, counts: Floats) -> float:
    """The probability of sum_j G_j terms_j > 0, for independent G_j ~ Gamma(counts_j)."""
    if not (terms > 0).any():
        return 0.0
    if not (terms < 0).any():
        return 1.0
    if counts @ terms > 0:
        return 1.0 - _positive(-terms, counts)
    saddle = _saddle(terms, counts)
    # The integral has a pole at 0: a line beside the saddle will do as well, and the steps must not miss the pole.
    width = 1 / np.sqrt(counts @ (terms / (1 - terms * saddle)) ** 2)
    saddle = max(saddle, min(width, 1 / float(terms.max())) / 2)
    slopes = terms / (1 - terms * saddle)
    end = 1.0
    while counts @ np.log1p((slopes * width * np.sinh(end)) ** 2) < 2 * _NEGLIGIBLE:
        end *= 1.1
    steps = np.linspace(0.0, end, _NODES)
    line = saddle + 1j * width * np.sinh(steps)
    logs = counts @ np.log1p(-terms[:, None] * line)
    heights = (np.exp(-logs) / line).real * width * np.cosh(steps)
    return float(steps[1] * (heights.sum() - heights[0] / 2) / np.pi)


def _saddle(terms: Floats, counts: Floats) -> float:
    """Where -sum_j counts_j log(1 - terms_j s) is least for s > 0."""
    low, high = 0.0, 1 / float(terms.max())
    point = high / 2
    for _ in range(100):
        slopes = terms / (1 - terms * point)
        slope, bend = float(counts @ slopes), float(counts @ slopes**2)
        low, high = (low, point) if slope > 0 else (point, high)
        step = point - slope / bend
        step = step if low < step < high else (low + high) / 2
        if abs(step - point) <= 1e-9 * high:
            break
        point = step
    return point
