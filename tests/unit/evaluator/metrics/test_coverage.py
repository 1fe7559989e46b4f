"""The 95 % intervals of the tables hold the truth: a bound is broken where a
simulation's 99 % interval is below."""

import pytest

from tests.support.coverage import WANTED, Cell, cells, cover
from tests.support.interval_statistics import STATISTICS

_EACH = pytest.mark.parametrize("statistic", STATISTICS, ids=lambda each: each.name)


@_EACH
def test_interval_holds_the_truth(statistic):
    for cell in (Cell(10, 5, 0.8, 1.0), Cell(50, 1, 0.95, 0.0)):
        found = cover(statistic, cell, 60)
        assert found.empty == 0
        assert found.at_most >= WANTED, f"{found.share:.1%} of {found.shown}: {cell}"


@pytest.mark.long
@_EACH
def test_no_cell_covers_seldom(statistic):
    found = [cover(statistic, cell, 400) for cell in cells()]
    assert not [each for each in found if each.empty or each.at_most < WANTED]
    assert any(each.shown for each in found)
