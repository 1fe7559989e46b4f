"""How numbers read for people."""

import math

import pytest

from evaluator.metrics.columns import FEW, RANK, Column, rounded


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.5, 0, "3"),  # Python's own formats say 2, and 4 for 3.5
        (3.5, 0, "4"),
        (-2.5, 0, "\N{MINUS SIGN}3"),
        (0.25, 1, "0.3"),
        (2.675, 2, "2.68"),
        (100 * (0.625 - 0.25000000000000006), 0, "38"),
        (1234.5, 0, "1,235"),
        (2.0**60, 1, "1,152,921,504,606,846,976.0"),
        (-2.8e-18, 1, "0.0"),
        (math.inf, 2, "inf"),
    ],
)
def test_halves_go_away_from_zero(value, digits, text):
    assert rounded(value, digits) == text


def test_median_rank_of_few_has_their_number():
    column = Column("rank", RANK, of="n")
    assert column.shown({"rank": 2.0, "n": 1}) == "2.0 (1)"
    assert column.shown({"rank": 2.0, "n": FEW}) == "2.0"
