"""Uncertainty of rates and of paired differences: Wilson, exact McNemar, a joint clustered bootstrap, Holm.

The bootstrap draws items once per task and uses the same draws for every checkpoint, so that a difference between two
checkpoints is always taken on the same resampled items. Items that share a context are drawn together (clusters), also
across languages: a context that was translated into twelve languages is one unit, not twelve. Languages that share no
context are resampled each within itself, because the number of items per language is fixed by design.

Wilson, McNemar and Holm are a few lines each; statsmodels, which tests compare them with, takes a hundred times as long
per call, and its Wilson bound at 0 of n is not exactly 0.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, ndtri

Floats = npt.NDArray[np.float64]
ItemNumbers = npt.NDArray[np.intp]  # items by their number
Interval = tuple[float | None, float | None]

DRAWS = 2000
ALPHA = 0.05
UNDEFINED: Interval = (None, None)
_ONE_THREAD = 2**18  # multiplications: the products for which OpenBLAS starts no threads
_LEAST_COLUMNS = 64
_ALL_DRAWS = slice(None)
_Z = float(ndtri(1 - ALPHA / 2))


def wilson(count: int, n: int) -> Interval:
    """The Wilson 95 % interval of `count` successes in `n` trials; undefined without a trial.

    E. B. Wilson, JASA 22 (1927). At 0 of n the lower bound is exactly 0, at n of n the upper one exactly 1.
    """
    if n == 0:
        return UNDEFINED
    share, z2 = count / n, _Z * _Z
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return (0.0 if count == 0 else max(0.0, centre - half)), (1.0 if count == n else min(1.0, centre + half))


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar p of two discordant counts (1.0 when there is no discordant pair)."""
    fewer = min(only_first, only_second)
    return min(1.0, 2 * float(bdtr(fewer, only_first + only_second, 0.5)))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p values, in the order given; a missing p stays missing and is not counted as a test."""
    present = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, i) in enumerate(present):
        largest = max(largest, min(1.0, (len(present) - place) * p))
        adjusted[i] = largest
    return adjusted


def percentile_interval(draws: Floats, alpha: float = ALPHA) -> Interval:
    """The central 1 - `alpha` of bootstrap draws; undefined when more than a tenth of the draws are."""
    finite = draws[np.isfinite(draws)]
    if len(finite) == 0 or len(finite) < 0.9 * len(draws):
        return UNDEFINED
    low, high = np.percentile(finite, [100 * alpha / 2, 100 * (1 - alpha / 2)])
    return float(low), float(high)


def percentile_intervals(draws_VD: Floats) -> list[Interval]:
    """`percentile_interval` of each row, those at once that are defined in every draw."""
    whole = np.asarray(np.isfinite(draws_VD).all(axis=1))
    ends = np.full((2, len(draws_VD)), np.nan)
    ends[:, whole] = np.percentile(draws_VD[whole], [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)], axis=1)
    return [
        (float(low), float(high)) if defined else percentile_interval(draws)
        for defined, low, high, draws in zip(whole, *ends, draws_VD, strict=True)
    ]


def nan_mean(draws: Sequence[Floats]) -> Floats:
    """The mean over languages in every resample, of those that are defined in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=RuntimeWarning)  # a resample in which none is defined is NaN
        return np.asarray(np.nanmean(np.stack(draws), axis=0))


class Resampler:
    """Bootstrap weights of one task's items: how often each item occurs in each of `draws` resamples.

    Items are known by their number: their place in `languages` and `clusters`, which are parallel. One cluster name is
    one context, in whatever languages it occurs. The draws depend on the task, its languages and their clusters only,
    never on which checkpoints were evaluated or in what order. Fastest when a language's items have adjacent numbers.
    """

    def __init__(
        self, task: str, languages: Sequence[str], clusters: Sequence[str], *, draws: int = DRAWS, seed: int = 0
    ) -> None:
        self.context: ItemNumbers = np.unique(np.asarray(clusters, dtype=object), return_inverse=True)[1]
        self._weights = np.zeros((len(languages), draws), dtype=np.float32)
        by_language = np.asarray(languages, dtype=object)
        for stratum in _strata(by_language, self.context):
            rows = np.flatnonzero(np.isin(by_language, stratum))
            names, member = np.unique(self.context[rows], return_inverse=True)
            key = [seed, zlib.crc32(task.encode()), zlib.crc32("\x1f".join(stratum).encode())]
            chosen = np.random.default_rng(key).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
            self._weights[rows] = chosen.T[member].astype(np.float32)

    def clusters(self, items: ItemNumbers) -> int:
        """How many independent units these items are."""
        return len(np.unique(self.context[items]))

    @property
    def draws(self) -> int:
        """How many resamples there are."""
        return self._weights.shape[1]

    def means(self, items: ItemNumbers, *values: Floats, draws: slice = _ALL_DRAWS) -> Floats:
        """The mean of each of `values` (one per item) in every resample, or in some, as values x draws; NaN where a
        resample holds none of the items."""
        if len(items) == 0:
            return np.full((len(values), len(range(self.draws)[draws])), np.nan)
        sums = self._sums(items, *values, np.ones(len(items)), draws=draws)
        with np.errstate(invalid="ignore"):
            return np.asarray(sums[:-1] / np.where(sums[-1] > 0, sums[-1], np.nan))

    def _sums(self, items: ItemNumbers, *values: Floats, draws: slice = _ALL_DRAWS) -> Floats:
        first, last = int(items.min()), int(items.max()) + 1
        # A view of adjacent rows, with zeros for the items between that were not requested: no copy of the weights.
        scattered = np.zeros((len(values), last - first), dtype=np.float32)
        scattered[:, items - first] = np.stack(values)
        return _product(scattered, self._weights[first:last, draws]).astype(np.float64)

    def mean_interval(self, items: ItemNumbers, values: Floats) -> Interval:
        """The bootstrap interval of a mean; undefined with fewer than two clusters."""
        return self.interval(items, self.means(items, values)[0])

    def interval(self, items: ItemNumbers, draws: Floats) -> Interval:
        """The interval of draws of a statistic of these items; undefined with fewer than two clusters."""
        return percentile_interval(draws) if self.clusters(items) >= 2 else UNDEFINED

    def intervals(self, items: ItemNumbers, draws_VD: Floats) -> list[Interval]:
        """`interval` of each row of draws: statistics of the same items."""
        enough = self.clusters(items) >= 2
        return percentile_intervals(draws_VD) if enough else [UNDEFINED] * len(draws_VD)

    def median_interval(self, items: ItemNumbers, values: Floats) -> Interval:
        """The bootstrap interval of a median (the mean of the middle two of an even resample)."""
        if self.clusters(items) < 2:
            return UNDEFINED
        order = np.argsort(values, kind="stable")
        items, values = items[order], values[order]
        # The middle of a resample is hardly ever far from the middle of the items: look there first.
        far = math.ceil(len(items) * 3 / math.sqrt(self.clusters(items)))
        middle = len(items) // 2
        near = slice(max(0, middle - far), min(len(items), middle + far))
        medians = self._medians_within(near, items, values)
        if medians is None:
            medians = self._medians_within(slice(0, len(items)), items, values)
            assert medians is not None
        return percentile_interval(medians)

    def _medians_within(self, window: slice, items: ItemNumbers, values: Floats) -> Floats | None:
        """Every resample's median, looked for among the sorted `values` in `window`; None if one lies outside it.

        In a resample a value counts as often as it was drawn. The median is the value at which the cumulative count
        reaches half of the total; where it meets half exactly, the mean of that value and the next.
        """
        first, last = window.start, window.stop
        in_front = (np.arange(len(items)) < first).astype(np.float64)
        total, skipped = self._sums(items, np.ones(len(items)), in_front)
        cumulative = self._weights[items[window]].cumsum(axis=0) + skipped.astype(np.float32)
        half = total / 2
        too_low = (first > 0) & (skipped >= half)
        too_high = (last < len(items)) & (cumulative[-1] <= half)
        if ((too_low | too_high) & (total > 0)).any():
            return None
        half = half.astype(np.float32)
        lower = first + np.minimum(np.count_nonzero(cumulative < half, axis=0), last - first - 1)
        upper = first + np.minimum(np.count_nonzero(cumulative <= half, axis=0), last - first - 1)
        return np.where(total > 0, (values[lower] + values[upper]) / 2, np.nan)


def _product(small: npt.NDArray[np.float32], large: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The matrix product; of outcomes (0 or 1) and their differences, whose sums are exact in any order, in blocks that
    one thread computes: several take longer to start, and wait for one another where others compute as well."""
    columns = _ONE_THREAD // small.size
    if columns < _LEAST_COLUMNS or (np.abs(small) != small * small).any():
        return np.asarray(small @ large)
    blocks = [small @ large[:, start : start + columns] for start in range(0, large.shape[1], columns)]
    return np.concatenate(blocks, axis=1)


def _strata(languages: npt.NDArray[np.object_], clusters: npt.NDArray[np.intp]) -> list[list[str]]:
    """The languages in groups that share no cluster with another group; each group and the list are sorted."""
    groups: list[tuple[set[str], set[int]]] = []
    for language in sorted(set(languages.tolist())):
        names, held = {language}, set(clusters[languages == language].tolist())
        apart = []
        for other_names, other_held in groups:
            if held & other_held:
                names, held = names | other_names, held | other_held
            else:
                apart.append((other_names, other_held))
        groups = [*apart, (names, held)]
    return sorted(sorted(names) for names, _ in groups)
