"""What a mean of differences surely exceeds: against enumeration of everything that n items can show."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import numpy as np
import pytest

from evaluator.metrics.intervals import mcnemar_exact
from evaluator.metrics.screening.bounds import _error, _tail, bounds, lower_bound, surely_above

N = 14


def outcomes(n: int, p: float, m: float) -> Iterator[tuple[int, int, float]]:
    """Every count of +1 and -1 among n items, with its probability."""
    for plus in range(n + 1):
        for minus in range(n - plus + 1):
            ways = comb(n, plus) * comb(n - plus, minus)
            yield plus, minus, ways * p**plus * m**minus * max(0.0, 1 - p - m) ** (n - plus - minus)


@pytest.mark.parametrize("margin", [0.0, 0.1, -0.1])
@pytest.mark.parametrize(("seen", "differ"), [(5, 5), (3, 7), (0, 4), (-2, 8), (11, 11)])
def test_the_tail_is_what_enumeration_gives(seen, differ, margin):
    n, shares = 11, np.array([0.12, 0.3, 0.7, 1.0])

    def distance(plus: int, minus: int) -> float:
        return (plus - minus - n * margin) / float(_error(plus + minus, n, margin))

    least = (seen - n * margin) / float(_error(differ, n, margin)) - 1e-9
    for share, found in zip(shares, _tail(seen, differ, n, margin, shares), strict=True):
        p, m = (share + margin) / 2, (share - margin) / 2
        expected = sum(chance for plus, minus, chance in outcomes(n, p, m) if distance(plus, minus) >= least)
        assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("level", [0.2, 0.01])
@pytest.mark.parametrize("margin", [0.0, 0.05, 0.3, -0.2])
def test_wherever_the_mean_is_within_the_margin_it_is_seldom_said_to_be_above(margin, level):
    above = {
        (plus, minus)
        for plus in range(N + 1)
        for minus in range(N - plus + 1)
        if surely_above(plus, minus, N, margin, level)
    }
    assert above  # something is found at all
    for mean in (margin, margin - 0.03, margin - 0.2):
        for step in range(31):
            differ = abs(mean) + (1 - abs(mean)) * step / 30
            p, m = (differ + mean) / 2, (differ - mean) / 2
            wrong = sum(chance for plus, minus, chance in outcomes(N, p, m) if (plus, minus) in above)
            assert wrong <= level + 1e-12


@pytest.mark.parametrize(
    ("plus", "minus", "n"), [(0, 0, 50), (9, 0, 40), (0, 9, 40), (30, 10, 100), (5, 5, 10), (60, 0, 60), (3, 1, 400)]
)
def test_bounds_hold_the_estimate_and_agree_with_the_decision(plus, minus, n):
    low, high = bounds(plus, minus, n, 0.01)
    assert -1 <= low < (plus - minus) / n < high <= 1 or (plus == n and high == 1)
    assert bounds(minus, plus, n, 0.01) == (-high, -low)
    assert surely_above(plus, minus, n, low - 1e-4, 0.01)
    assert not surely_above(plus, minus, n, low + 1e-4, 0.01)


def test_without_items_nothing_is_sure():
    assert (lower_bound(0, 0, 0, 0.01), surely_above(0, 0, 0, -0.5, 0.01)) == (-1.0, False)


@pytest.mark.parametrize(("plus", "minus"), [(9, 0), (14, 2), (30, 10), (6, 1), (12, 6), (9, 2)])
def test_it_finds_what_mcnemars_exact_test_finds(plus, minus):
    """One-sided, at a margin of 0, where p is not near the level."""
    p = mcnemar_exact(minus, plus) / 2
    assert not 0.005 < p < 0.02
    assert surely_above(plus, minus, 100, 0.0, 0.01) == (p < 0.01)
    assert not surely_above(minus, plus, 100, 0.0, 0.01)
