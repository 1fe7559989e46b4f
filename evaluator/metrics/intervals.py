"""Uncertainty of rates and of paired differences: Wilson, exact McNemar, a joint clustered bootstrap, Holm.

The bootstrap draws items once per task and uses the same draws for every checkpoint, so that a difference between two
checkpoints is always taken on the same resampled items. Items that share a context are drawn together (clusters), and
every language is resampled within itself, because the number of items per language is fixed by design.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest
from statsmodels.stats.proportion import proportion_confint

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]  # items by their number
Interval = tuple[float | None, float | None]

DRAWS = 2000
ALPHA = 0.05
UNDEFINED: Interval = (None, None)


def wilson(count: int, n: int) -> Interval:
    """The Wilson 95 % interval of `count` successes in `n` trials; undefined without a trial."""
    if n == 0:
        return UNDEFINED
    low, high = proportion_confint(count, n, alpha=ALPHA, method="wilson")
    return float(low), float(high)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar p of two discordant counts (1.0 when there is no discordant pair)."""
    discordant = only_first + only_second
    return 1.0 if discordant == 0 else float(binomtest(only_first, discordant, 0.5).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm-adjusted p values, in the order given; a missing p stays missing and is not counted as a test."""
    present = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for place, (p, i) in enumerate(present):
        largest = max(largest, min(1.0, (len(present) - place) * p))
        adjusted[i] = largest
    return adjusted


def percentile_interval(draws: Floats) -> Interval:
    """The central 95 % of bootstrap draws; undefined when more than a tenth of the draws are."""
    finite = draws[np.isfinite(draws)]
    if len(finite) == 0 or len(finite) < 0.9 * len(draws):
        return UNDEFINED
    low, high = np.percentile(finite, [100 * ALPHA / 2, 100 * (1 - ALPHA / 2)])
    return float(low), float(high)


class Resampler:
    """Bootstrap weights of one task's items: how often each item occurs in each of `draws` resamples.

    Items are known by their number: their place in `languages` and `clusters`, which are parallel. The draws depend on
    the task, the language and its clusters only, never on which checkpoints were evaluated or in what order.
    """

    def __init__(
        self, task: str, languages: Sequence[str], clusters: Sequence[str], *, draws: int = DRAWS, seed: int = 0
    ) -> None:
        self._cluster = np.unique(
            [f"{a}\x1f{b}" for a, b in zip(languages, clusters, strict=True)], return_inverse=True
        )[1]
        self._weights = np.zeros((len(languages), draws), dtype=np.float32)
        by_language = np.asarray(languages)
        for language in sorted(set(languages)):
            rows = np.flatnonzero(by_language == language)
            names, member = np.unique(self._cluster[rows], return_inverse=True)
            key = [seed, zlib.crc32(task.encode()), zlib.crc32(language.encode())]
            chosen = np.random.default_rng(key).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
            self._weights[rows] = chosen.T[member].astype(np.float32)

    def clusters(self, items: Rows) -> int:
        """How many independent units these items are."""
        return len(np.unique(self._cluster[items]))

    def means(self, items: Rows, values: Floats) -> Floats:
        """The mean of `values` (one per item) in every resample; NaN where a resample holds none of the items."""
        weights = self._weights[items]
        total = weights.sum(axis=0, dtype=np.float64)
        with np.errstate(invalid="ignore"):
            return np.asarray((values.astype(np.float32) @ weights) / np.where(total > 0, total, np.nan), np.float64)

    def mean_interval(self, items: Rows, values: Floats) -> Interval:
        """The bootstrap interval of a mean; undefined with fewer than two clusters."""
        if self.clusters(items) < 2:
            return UNDEFINED
        return percentile_interval(self.means(items, values))

    def median_interval(self, items: Rows, values: Floats) -> Interval:
        """The bootstrap interval of a median (the lower one of an even resample)."""
        if self.clusters(items) < 2:
            return UNDEFINED
        order = np.argsort(values, kind="stable")
        cumulative = self._weights[items][order].cumsum(axis=0)
        half = cumulative[-1] / 2
        at = np.argmax(cumulative >= np.maximum(half, 0.5), axis=0)
        return percentile_interval(np.where(half > 0, values[order][at], np.nan).astype(np.float64))
