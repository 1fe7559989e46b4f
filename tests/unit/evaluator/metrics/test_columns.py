"""How numbers read for people."""

import math

import pytest

from evaluator.metrics.columns import FACTOR, PERCENTAGE, POINTS, SUBJECT, rounded
from evaluator.metrics.headline import _part
from evaluator.report import theme


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (2.5, 0, "3"),  # Python's own formats say 2, and 4 for 3.5
        (3.5, 0, "4"),
        (-2.5, 0, "\N{MINUS SIGN}3"),
        (0.25, 1, "0.3"),
        (2.675, 2, "2.67"),  # a little less than it is written
        (1234.5, 0, "1,235"),
        (2.0**60, 1, "1,152,921,504,606,846,976.0"),
        (-2.8e-18, 1, "0.0"),
        (math.inf, 2, "inf"),
    ],
)
def test_halves_go_away_from_zero(value, digits, text):
    assert rounded(value, digits) == text


def test_share_reads_alike_everywhere():
    """A share reads the same wherever it stands."""
    assert (_part(0.025, 40), theme.as_percent(0.025)) == (
        "3\N{NO-BREAK SPACE}%",
        "3 %",
    )
    assert theme.as_points(-0.025) == "\N{MINUS SIGN}3 pp"
    assert (PERCENTAGE.shown(0.0625), POINTS.shown(-0.0625)) == (
        "6.3 %",
        "\N{MINUS SIGN}6.3 pp",
    )
    assert FACTOR.shown(1234.0005) == "1,234.001"


@pytest.mark.parametrize(
    ("achieved", "requested", "text"),
    [
        (0.2, 0.99, "0.2 (requested 0.99)"),
        (0.4977, 0.5, "0.498 (requested 0.5)"),
        (0.4999, 0.5, "0.5"),  # whole weights
        (0.5, None, "0.5"),  # a run of before
        (None, None, "\N{EN DASH}"),
    ],
)
def test_missed_sparsity_beside_requested(achieved, requested, text):
    """A sparsity that was not achieved stands beside the requested one."""
    column = next(each for each in SUBJECT if each.name == "sparsity")
    assert column.shown({"sparsity": achieved, "requested_sparsity": requested}) == text
