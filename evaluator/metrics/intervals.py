"""A mean over items that share contexts: its interval and its p-values, at any level
and any number of contexts.

    loss = Mean(base - own, contexts, low=-1)      # an item's value is -1, 0 or 1
    loss.interval()                                # two-sided 95 %
    loss.upper(0.05)                               # one-sided: the mean is below this
    loss.p_at_least(0.02)                          # p-value of "the mean is 0.02 or
                                                   more"

The bound is Gaffke's for a bounded mean (N. Gaffke, "Three test statistics for a
nonparametric one-sided hypothesis on the mean of a nonnegative variable", Mathematical
Methods of Statistics 14, 2005; E. Learned-Miller and P. Thomas, "A new confidence
interval for the mean of a bounded random variable", 2019, arXiv 1905.06208). One more
context joins the measured ones: of one item with the worst possible value, of several
with the worst plausible ones (`Mean._worst`), which is no theorem but measured. All
contexts get random weights that sum to 1 (Dirichlet, each parameter 1). The p-value is
the probability that the weighted mean exceeds the margin.

- For a rate with one item a context, this is the exact interval of Clopper and Pearson.
- For a paired difference without a discordant pair, it is the exact bound 1 -
  level^(1/n).
- For many contexts, it is the normal interval with a standard error clustered by
  context.

Wilson's interval covers a rate of 95 % in 91 % of samples of 10 items. Tango's test of
a loss of 2 points passes 6.8 % of such checkpoints at 133 items. Both ignore contexts.
`tests/unit/benchmarks/test_gate.py` measures this bound.

The weighted mean exceeds a margin if sum_j G_j a_j > 0, with G_j ~ Gamma(number of
contexts alike). That probability is an integral of the moment generating function along
a line through its saddle point (H. Daniels, Annals of Mathematical Statistics 25,
1954). The trapezoidal rule computes it with a relative error of two thousandths or
less.

Tests of paired outcomes are here too: McNemar (exact) and Holm take a few lines each.
Unit tests compare them with statsmodels, which takes a hundred times as long per call.
Statistics other than means: `bootstrap`.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, betaincc, betaincinv, ndtri

Floats = npt.NDArray[np.float64]
ItemNumbers = npt.NDArray[np.intp]  # items, or their contexts, by their number
Interval = tuple[float, float]

ALPHA = 0.05
FEWEST = 3  # contexts that an interval needs
# the integral's nodes
_UNIT, _FINE = np.linspace(0.0, 1.0, 128), np.linspace(0.0, 1.0, 256)
# A longer integral needs the fine nodes where it is small: its error was .7 % at 7.
# Bounds do not need them.
_LONG, _SMALL = 6.25, 0.01
# where the integral may end
_ENDS = np.arange(1.0, 40.0, 0.25), np.sinh(np.arange(1.0, 40.0, 0.25))
_NEGLIGIBLE = 30.0  # -log of the part that the integral leaves out
_CLOSE = 1e-4  # standard errors: after a Newton step this small the error is 1e-8
_STEPS = 100
_DIGITS = 12  # sums that differ by rounding alone are alike

_Kind = tuple[float, float]  # of a context: the sum of its values, and its divisor
# Contexts that are alike, and their number.
_Alike = tuple[tuple[float, float, float], ...]


def too_few(contexts: int) -> str:
    """Why there is no interval."""
    words = "1 context is" if contexts == 1 else f"{contexts} contexts are"
    return f"{words} too few for an interval"


def mcnemar_p(first: Floats, second: Floats) -> float | None:
    """Two-sided exact McNemar p of two outcomes (0.0 or 1.0) of the same items: 1.0
    if all agree; None for no item."""
    if len(first) == 0:
        return None
    only_first, only_second = int((first > second).sum()), int((second > first).sum())
    fewer = min(only_first, only_second)
    return min(1.0, 2 * float(bdtr(fewer, only_first + only_second, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p values, in the order given; a missing p stays missing and is
    not counted as a test."""
    present = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, i) in enumerate(present):
        largest = max(largest, min(1.0, (len(present) - place) * p))
        adjusted[i] = largest
    return adjusted


class Mean:
    """The mean of items' values over contexts that are drawn independently.

    `values` are in [low, high], one an item; `contexts` numbers each item's context.
    `weights` make it a weighted mean. Raises ValueError without an item."""

    def __init__(
        self,
        values: Floats,
        contexts: ItemNumbers,
        *,
        low: float = 0,
        high: float = 1,
        weights: Floats | None = None,
    ) -> None:
        if not len(values):
            raise ValueError("a mean needs an item")
        weights = np.ones(len(values)) if weights is None else weights
        present = np.bincount(contexts) > 0
        sums = np.bincount(contexts, values * weights)[present]
        sizes = np.bincount(contexts, weights)[present]
        self._sums = np.asarray(sums, np.float64)
        self._sizes = np.asarray(sizes, np.float64)
        self._usual = float(self._sizes @ self._sizes / self._sizes.sum())  # size
        self._low, self._high, self._times = low, high, 1.0
        # contexts: the independent units
        self.n, self.contexts = len(values), len(self._sums)
        self.value = float(self._sums.sum() / self._sizes.sum())

    def times(self, factor: float) -> Self:
        """The mean as if `factor` times as many contexts had shown it: only bounds
        and p-values change."""
        found = copy(self)
        found._times = factor
        return found

    def p_at_least(self, margin: float) -> float:
        """The p-value of "the mean is `margin` or more"."""
        return _tail(self._alike(1.0), margin)

    def p_at_most(self, margin: float) -> float:
        """The p-value of "the mean is `margin` or less"."""
        return _tail(self._alike(-1.0), -margin)

    def upper(self, level: float) -> float:
        """The upper bound of the mean, with confidence 1 - level."""
        return _bound(self._alike(1.0), level)

    def lower(self, level: float) -> float:
        """The lower bound of the mean, with confidence 1 - level."""
        return -_bound(self._alike(-1.0), level) + 0.0  # no -0

    def interval(self, level: float = ALPHA) -> Interval | str:
        """The two-sided interval of confidence 1 - level; the reason why there is none
        for fewer than `FEWEST` contexts."""
        if self.contexts < FEWEST:
            return too_few(self.contexts)
        return self.lower(level / 2), self.upper(level / 2)

    @cached_property
    def _kinds(self) -> Mapping[_Kind, int]:
        """The number of contexts of each kind."""
        pairs = np.stack([self._sums, self._sizes]).round(_DIGITS) + 0.0
        return Counter(zip(*pairs.tolist(), strict=True))

    def _alike(self, sign: float) -> _Alike:
        """The contexts and one more, the worst for an upper bound of `sign` times
        the mean."""
        low, high = (self._low, self._high) if sign > 0 else (-self._high, -self._low)
        alike = {
            (sign * total + 0.0, size): self._times * count
            for (total, size), count in self._kinds.items()
        }
        total, size = self._worst(sign, low, high)
        worst = round(total, _DIGITS), round(size, _DIGITS)
        alike[worst] = alike.get(worst, 0.0) + 1.0
        return tuple((*kind, count) for kind, count in sorted(alike.items()))

    def _worst(self, sign: float, low: float, high: float) -> _Kind:
        """The sum and the size of one more context: a context of usual size with the
        worst plausible values.

        The usual size is weighted by size: large contexts decide how far the mean may
        move. A single item may be as bad as `high`; in a context of several, all rarely
        are. So the worst share is the larger of two: the largest share of any context,
        and the mean share with each share as its own weight, after adding a context of
        share 1.
        """
        usual = 0.0 if low < 0 < high else low
        largest, weights, weighted = 0.0, 1.0, 1.0
        for (total, size), count in self._kinds.items():
            share = min(max((sign * total / size - usual) / (high - usual), 0), 1)
            largest = max(largest, share)
            weights += count * share
            weighted += count * share * share
        share = max(largest, weighted / weights)
        return (usual + share * (high - usual)) * self._usual, self._usual


class Ratio(Mean):
    """The ratio of two sums over the same items, both with values from 0 to 1:
    `over` divided by `under`.

    Its upper bound is infinite if the bound of `under` is 0."""

    def __init__(self, over: Floats, under: Floats, contexts: ItemNumbers) -> None:
        super().__init__(over, contexts)
        sizes = np.bincount(contexts, under)[np.bincount(contexts) > 0]
        self._sizes = np.asarray(sizes, np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            self.value = float(self._sums.sum() / self._sizes.sum())

    def _worst(self, sign: float, low: float, high: float) -> _Kind:
        """Upwards, a context in which only `over` counts; downwards, only `under`."""
        return (self._usual, 0.0) if high > 0 else (0.0, self._usual)


@lru_cache(maxsize=5000)
def _bound(alike: _Alike, level: float) -> float:
    """The margin that the weighted mean exceeds with probability `level`.

    Newton's method runs on the normal scale, on which the probability is nearly linear
    in the margin.
    """
    sums, sizes, counts = np.array(alike).T
    if not sizes.any():
        return float("inf")
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = sums / sizes
    least, most = float(np.nanmin(shares)), float(np.nanmax(shares))
    if least == most:
        return most
    if len(alike) == 2 and sizes[0] == sizes[1]:
        return least + (most - least) * float(
            betaincinv(counts[1], counts[0], 1 - level)
        )
    z = float(ndtri(1 - level))
    middle = float(counts @ sums / (counts @ sizes))
    apart = sums - middle * sizes
    spread = math.sqrt(counts @ apart**2)
    error = spread / float(counts @ sizes)
    skewness = 2 * float(counts @ apart**3) / spread**3
    # Cornish and Fisher's first two terms.
    margin = middle + error * (z + skewness * (z**2 - 1) / 6)
    margin, far = min(margin, (middle + most) / 2), error
    for _ in range(_STEPS):
        tail, slope = _positive(sums - margin * sizes, -sizes, counts)
        place = float(ndtri(tail))
        least, most = (margin, most) if place > -z else (least, margin)
        density = math.exp(-(place**2) / 2) / math.sqrt(2 * math.pi)
        step = -(place + z) * density / slope if slope else math.inf
        if not least < margin + step < most:
            # Halfway to the bracket's other end; ever further if that end is infinite.
            far *= 2
            other = most if margin == least else least
            goal = margin + math.copysign(far, other)
            if math.isfinite(other):
                goal = (margin + other) / 2
            step = goal - margin
        margin += step
        if abs(step) < _CLOSE * error:
            break
    return margin


@lru_cache(maxsize=5000)
def _tail(alike: _Alike, margin: float) -> float:
    """The probability that the weighted mean exceeds `margin`."""
    sums, sizes, counts = np.array(alike).T
    if len(alike) == 2 and sizes[0] == sizes[1]:
        place = (margin * sizes[0] - sums[0]) / (sums[1] - sums[0])
        return float(betaincc(counts[1], counts[0], min(max(place, 0.0), 1.0)))
    return _positive(sums - margin * sizes, -sizes, counts)[0]


def _positive(terms: Floats, changes: Floats, counts: Floats) -> tuple[float, float]:
    """P(sum_j G_j terms_j > 0), for independent G_j ~ Gamma(counts_j); its
    derivative as terms move by `changes`."""
    if terms.max() <= 0:
        return 0.0, 0.0
    if terms.min() >= 0:
        return 1.0, 0.0
    if counts @ terms > 0:
        probability, change = _positive(-terms, -changes, counts)
        return 1.0 - probability, -change
    crossing, width, end = _line(terms, counts)
    found = _integral(terms, changes, counts, crossing, width, end * _UNIT)
    if end > _LONG and found[0] < _SMALL:
        return _integral(terms, changes, counts, crossing, width, end * _FINE)
    return found


def _line(terms: Floats, counts: Floats) -> tuple[float, float, float]:
    """Where the line of the integral crosses the real axis, the scale along it, and
    the end of the integral in that scale.

    The integral has a pole at 0. A line beside the saddle works too, but the steps must
    resolve the pole.
    """
    saddle = _saddle(terms, counts)
    width = 1 / math.sqrt(counts @ (terms / (1 - terms * saddle)) ** 2)
    crossing = max(saddle, min(width, 1 / float(terms.max())) / 2)
    slopes = terms / (1 - terms * crossing)
    ends, beside = _ENDS
    decays = np.log1p((np.outer(beside * width, slopes)) ** 2) @ counts
    end = ends[np.argmax(decays >= 2 * _NEGLIGIBLE)]
    return crossing, width, float(end)


def _integral(
    terms: Floats,
    changes: Floats,
    counts: Floats,
    crossing: float,
    width: float,
    steps: Floats,
) -> tuple[float, float]:
    """The trapezoidal rule over the points crossing + i width sinh(steps)."""
    slopes = terms / (1 - terms * crossing)
    beside = width * np.sinh(steps)
    ratios = slopes[:, None] * beside
    squares = ratios * ratios
    # The logarithm of 1 - terms * line, in its real and its imaginary part.
    logs = (
        counts @ np.log1p(-terms * crossing)
        + counts @ np.log1p(squares) / 2
        - 1j * (counts @ np.arctan(ratios))
    )
    heights = np.exp(-logs) * np.cosh(steps)
    heights[0] /= 2
    heights *= width * steps[1] / math.pi
    line = crossing + 1j * beside
    # In real numbers: OpenBLAS starts threads for a product of complex ones.
    weights, parts = counts * changes / (1 - terms * crossing), 1 / (1 + squares)
    bends = weights @ parts + 1j * (weights @ (ratios * parts))
    return float((heights @ (1 / line)).real), float((heights @ bends).real)


def _saddle(terms: Floats, counts: Floats) -> float:
    """The approximate minimum of -sum_j counts_j log(1 - terms_j s) for s > 0."""
    low, high = 0.0, 1 / float(terms.max())
    point = min(-float(counts @ terms / (counts @ terms**2)), high / 2)
    for _ in range(100):
        slopes = terms / (1 - terms * point)
        slope, bend = float(counts @ slopes), float(counts @ slopes**2)
        low, high = (low, point) if slope > 0 else (point, high)
        # The sum is self-concordant, so a small Newton decrement is small relative to
        # the distance to the pole too.
        if abs(slope) <= 1e-2 * math.sqrt(bend):
            break
        step = point - slope / bend
        point = step if low < step < high else (low + high) / 2
    return point
