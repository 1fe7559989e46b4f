"""Rows of numbers with their intervals, and why there is none."""

import gc
import math
import weakref

import numpy as np
import pytest
from scipy.stats import binom, ttest_1samp

from evaluator.metrics.items import Items
from evaluator.metrics.measures import (
    ALIKE,
    Unbounded,
    difference,
    language_mean,
    median,
    rate,
)
from tests.support.tables import assert_has

NOTHING = np.array([], dtype=np.intp)
FEW = "2 contexts are too few for an interval"


def test_median_interval():
    """Of 15 items, P(fewer than 4 below the median) = 0.018 and P(fewer than 5) =
    0.059: the 4th and the 12th."""
    assert binom.cdf(3, 15, 0.5) < 0.025 < binom.cdf(4, 15, 0.5)
    values = np.random.default_rng(0).permutation(15).astype(np.float64)
    assert_has(median("m", values, np.arange(15)), m=7.0, m_low=3.0, m_high=11.0)
    row = median("m", np.arange(5.0), np.arange(5))
    assert_has(row, m=2.0, m_why="5 contexts are too few for an interval")
    assert_has(median("m", np.ones(50), np.arange(50)), m=1.0, m_low=None, m_why=ALIKE)


def test_student_interval():
    values = np.random.default_rng(1).normal(3, 2, 12)
    mean = Unbounded.ratio(values, np.ones(12), np.arange(12))
    expected = ttest_1samp(values, 0).confidence_interval()
    assert mean.interval() == pytest.approx((expected.low, expected.high))
    ends = math.exp(expected.low), math.exp(expected.high)
    assert mean.interval("exp") == pytest.approx(ends)
    assert mean.p == pytest.approx(ttest_1samp(values, 0).pvalue)
    few = Unbounded.ratio(values[:2], np.ones(2), np.arange(2))
    assert few.interval() == FEW


def test_rates_and_language_means():
    row = rate("r", [1.0, 1, 0, 1], np.array([0, 0, 1, 1]))
    assert row == {"r": 0.75, "r_low": None, "r_high": None, "r_why": FEW}
    assert rate("r", [], NOTHING) == difference("d", [], NOTHING) == {}
    # 160, 60 and 20 items that are right in 80, 50 and 20 %: the mean of rates is 50 %,
    # the rate of all is 67.5 %.
    languages = np.repeat(["a", "b", "c"], [160, 60, 20])
    columns = {"language": languages, "context": np.arange(240)}
    items = Items.of_columns(columns | {"item": columns["context"]})
    values = np.repeat([1.0, 0, 1, 0, 1, 0], [128, 32, 30, 30, 4, 16])
    row = language_mean("x", values, items)
    assert_has(row, x=0.5)
    assert row["x_low"] < 0.5 < row["x_high"] < 0.675


def test_items_end_without_a_collection():
    """Reports collect rarely: a cycle would keep every checkpoint's columns."""
    items = Items.of_columns(
        {"item": [0, 1], "asked": [True, True], "base_asked": [True, False]}
    )
    assert len(items.both) == 1
    known = weakref.ref(items)
    gc.disable()
    try:
        del items
        assert known() is None
    finally:
        gc.enable()
