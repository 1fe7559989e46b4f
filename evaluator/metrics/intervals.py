"""Tests of paired outcomes (exact McNemar, Holm), and the types of intervals.

McNemar and Holm take a few lines each. Tests compare them with statsmodels, which takes a hundred times as long per
call. The intervals themselves are in `means` (means and ratios, exact), `draws` (other statistics) and `measures` (as
columns of a table).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

Floats = npt.NDArray[np.float64]
ItemNumbers = npt.NDArray[np.intp]  # items, or their contexts, by their number
Interval = tuple[float | None, float | None]

ALPHA = 0.05
UNDEFINED: Interval = (None, None)


def mcnemar_exact(only_first: int, only_second: int) -> float:
    """Two-sided exact McNemar p of two discordant counts (1.0 without a discordant pair)."""
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
