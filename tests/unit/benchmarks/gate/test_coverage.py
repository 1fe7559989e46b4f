"""The coverage of the tables' intervals, on runs whose true number is known: all cells (long), and a few.

A bound is broken where the simulation's own exact 99 % interval lies above or below it.
"""

import pytest

from benchmarks.gate.coverage import WANTED, Cell, cells, cover, table
from benchmarks.gate.statistics import STATISTICS

_EACH = pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)
_CORNERS = (Cell(10, 5, 0.8, 1.0), Cell(50, 1, 0.95, 0.0))


@_EACH
def test_an_interval_has_width_and_holds_the_truth(statistic):
    for cell in _CORNERS:
        found = cover(statistic, cell, 60)
        assert found.empty == 0
        assert found.at_most >= WANTED, f"{found.share:.1%} of {found.shown}: {cell}"


@pytest.mark.long
@_EACH
def test_no_cell_covers_too_seldom(statistic):
    found = [cover(statistic, cell, 400) for cell in cells()]
    assert not [each for each in found if each.empty or each.at_most < WANTED], table(found).to_string()
    assert any(each.shown for each in found)
