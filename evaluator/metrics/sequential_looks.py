"""A test with several looks at growing data: the looks, and their level, so that the
error is right over all looks.

    order = in_order(contexts, languages, rng)      # whole contexts, every language
    in proportion
    ends = looks(contexts[order], first=100)        # 100, 120, 144, ... items, and
                                                    all of them
    nominal(0.05, ends)                             # at each look; over all looks
                                                    the error is 0.05

Every look has the same level (S. Pocock, Biometrika 64, 1977), for looks of any
sizes. A test statistic of k looks is a Brownian motion at the times n_1 < ... < n_k.
The probability that it ever crosses z * sqrt(n) is integrated look by look (P.
Armitage, C. McPherson and B. Rowe, Journal of the Royal Statistical Society A 132,
1969). A single look has the whole level. So the gate of a finished run follows the
same rule."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from evaluator.metrics.intervals import Floats, ItemNumbers

# of the gate: over all looks, and of BLOCK also over all checks
PASS_LEVEL, BLOCK_LEVEL = 0.05, 0.01
GROWTH = 6 / 5  # from look to look
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(96)
_FAR = 8.0  # standard deviations: the probability beyond is negligible


def in_order(
    contexts: ItemNumbers, languages: npt.NDArray[np.object_], rng: np.random.Generator
) -> ItemNumbers:
    """Places in random order: contexts whole, by their first item's language; every
    start has each language's share."""
    _, first, place = np.unique(contexts, return_index=True, return_inverse=True)
    when = np.empty(len(first))
    for language in sorted(set(languages[first])):
        here = np.flatnonzero(languages[first] == language)
        when[here] = (rng.permutation(len(here)) + rng.random(len(here))) / len(here)
    return np.asarray(np.lexsort((np.arange(len(contexts)), when[place])))


def looks(contexts: ItemNumbers, first: int) -> tuple[int, ...]:
    """The number of items at each look, for items in the order of `in_order`. The first
    look has `first` items, or just enough to end a context. Each next look has a fifth
    more, and the last one has all items.
    """
    total = len(contexts)
    ends = np.append(np.flatnonzero(contexts[1:] != contexts[:-1]) + 1, total)
    sizes: list[int] = []
    size = float(first)
    while size * GROWTH**0.5 < total:
        sizes.append(int(ends[np.searchsorted(ends, round(size))]))
        size = max(size, sizes[-1]) * GROWTH
    return (*(each for each in sizes if each < total), total)


def able(level: float, sizes: tuple[int, ...], spotless: float) -> tuple[int, ...]:
    """The looks at which a flawless checkpoint can pass: n items have the p-value
    `spotless` to the n-th power."""
    while len(sizes) > 1 and spotless ** sizes[0] > nominal(level, sizes):
        sizes = sizes[1:]
    return sizes


@lru_cache(maxsize=4096)
def nominal(level: float, sizes: tuple[int, ...]) -> float:
    """The one-sided level of each look, such that the probability of an error at any
    look is `level`."""
    if len(sizes) == 1:
        return level
    # takes half a second; a run without a screen has a single look
    from scipy.optimize import brentq

    low, high = float(ndtri(1 - level)), float(ndtri(1 - level / len(sizes)))
    return float(
        ndtr(-brentq(lambda z: crossing(z, sizes) - level, low, high, xtol=1e-6))
    )


def crossing(z: float, sizes: Sequence[int]) -> float:
    """The probability that a standard statistic exceeds `z` at any of the looks."""
    times = np.asarray(sizes, dtype=np.float64) / sizes[0]
    crossed = float(ndtr(-z))
    places, width = _grid(z, 1.0)
    density = np.exp(-(places**2) / 2) / np.sqrt(2 * np.pi)
    for before, now in pairwise(times):
        spread = np.sqrt(now - before)
        weights = density * width
        crossed += float(weights @ ndtr((places - z * np.sqrt(now)) / spread))
        there, width = _grid(z, now)
        density = (
            np.exp(-(((there[:, None] - places) / spread) ** 2) / 2)
            @ weights
            / (spread * np.sqrt(2 * np.pi))
        )
        places = there
    return crossed


def _grid(z: float, time: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre points and weights from far below to the bound."""
    low, high = -_FAR * np.sqrt(time), z * np.sqrt(time)
    return (low + high) / 2 + (high - low) / 2 * _POINTS, (high - low) / 2 * _WEIGHTS
