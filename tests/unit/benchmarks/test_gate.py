"""Error rates of the gate. A bound is broken where a simulation's 99 % interval is
beyond it."""

import pytest
from scipy.stats import binomtest

from benchmarks.gate import LOSS, ONLY_DROP, share

RUNS = 300
ONE_CONTEXT_AN_ITEM, FIVE_ITEMS = (1000, 1, 1), (1000, 1, 5)


def surely_above(rate: float, bound: float) -> bool:
    count = round(rate * RUNS)
    return binomtest(count, RUNS, bound, alternative="greater").pvalue < 0.005


@pytest.mark.parametrize("world", [ONE_CONTEXT_AN_ITEM, FIVE_ITEMS])
def test_loss_at_tolerance_seldom_passes(world):
    rate = share(world, 0.02, "PASS", RUNS, ONLY_DROP)
    assert not surely_above(rate, 0.05)
    # the planted loss is at the tolerance, and not far beyond it
    assert rate > 0


@pytest.mark.parametrize("world", [FIVE_ITEMS, (1000, 3, 1)])
def test_block_without_loss_is_rare(world):
    assert not surely_above(share(world, 0.0, "BLOCK", RUNS), 0.01)


def test_large_run_decides():
    world = (5000, 3, 1)
    assert share(world, 0.0, "PASS", 30) > 0.9
    assert share(world, LOSS, "BLOCK", 30) > 0.9
