"""Rows of numbers with their intervals, and why there is none; rows of a frame,
against a mask over it."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom, ttest_1samp

from evaluator.metrics.inputs import ALL, Comparison, in_language
from evaluator.metrics.intervals import Mean
from evaluator.metrics.measures import (
    ALIKE,
    Unbounded,
    apart,
    difference,
    language_mean,
    median,
    rate,
)
from tests.support.tables import has


def test_median_and_student_intervals():
    """Of 15 items, P(fewer than 4 below the median) = 0.018 and P(fewer than 5) =
    0.059: the 4th and the 12th."""
    assert binom.cdf(3, 15, 0.5) < 0.025 < binom.cdf(4, 15, 0.5)
    row = median(
        "m", np.random.default_rng(0).permutation(15).astype(np.float64), np.arange(15)
    )
    has(row, m=7.0, m_low=3.0, m_high=11.0)
    assert (
        median("m", np.arange(5.0), np.arange(5))["m_why"]
        == "5 contexts are too few for an interval"
    )
    row = median("m", np.ones(50), np.arange(50))
    has(row, m=1.0, m_low=None, m_why=ALIKE)
    values = np.random.default_rng(1).normal(3, 2, 12)
    mean = Unbounded.ratio(values, np.ones(12), np.arange(12))
    expected = ttest_1samp(values, 0).confidence_interval()
    assert mean.interval() == pytest.approx((expected.low, expected.high))
    assert mean.interval("exp") == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    assert mean.p == pytest.approx(ttest_1samp(values, 0).pvalue)
    assert (
        Unbounded.ratio(values[:2], np.ones(2), np.arange(2)).interval()
        == "2 contexts are too few for an interval"
    )


def test_rates_and_language_means():
    """Rates count contexts and means over languages are about languages."""
    row = rate("r", np.array([1.0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    assert row == {
        "r": 0.75,
        "r_low": None,
        "r_high": None,
        "r_why": "2 contexts are too few for an interval",
    }
    assert rate("r", np.array([]), np.array([], dtype=np.intp)) == {
        "r": None,
        "r_low": None,
        "r_high": None,
    }
    assert difference("d", np.array([]), np.array([], dtype=np.intp)) == {}
    # 160, 60 and 20 items that are right in 80, 50 and 20 %: the mean of rates is 50 %,
    # the rate of all is 67.5 %.
    items = pd.DataFrame(
        {"language": ["a"] * 160 + ["b"] * 60 + ["c"] * 20, "context": range(240)}
    )
    values = np.concatenate(
        [np.arange(n) < share * n for n, share in ((160, 0.8), (60, 0.5), (20, 0.2))]
    ).astype(float)
    row = language_mean("x", values, items)
    has(row, x=0.5)
    assert row["x_low"] < 0.5 < row["x_high"] < 0.675


def test_difference_of_two_means():
    """MOVER: 30 of 40 against 10 of 40."""
    first, second = (
        Mean((np.arange(40) < count).astype(float), np.arange(40)) for count in (30, 10)
    )
    row = apart("d", first, second)
    below = math.hypot(0.75 - first.lower(0.025), second.upper(0.025) - 0.25)
    above = math.hypot(first.upper(0.025) - 0.75, 0.25 - second.lower(0.025))
    has(row, d_low=0.5 - below, d=0.5, d_high=0.5 + above)
    status = {
        "greedy_status_dense": ["ok", "excluded", "truncated"],
        "greedy_status_pruned": ["ok", "ok", None],
    }
    rows = pd.DataFrame(status, dtype=object)
    for some in (rows, rows.iloc[:1]):
        found = Comparison(
            subject=None,
            unpaired={},
            languages=[],
            reason=None,
            frames={(): some},
            key=(),
        )
        assert found.measured("greedy").index.tolist() == [0]


def frame(languages: str) -> pd.DataFrame:
    names = {"e": "english", "k": "korean", "t": "thai"}
    return pd.DataFrame(
        {"language": [names[each] for each in languages], "item": range(len(languages))}
    )


@pytest.mark.parametrize("languages", ["eekkt", "ekket", "k", ""])
@pytest.mark.parametrize("language", ["english", "korean", "thai", "telugu"])
def test_rows_of_a_language(languages, language):
    """The rows of a language adjacent or not."""
    rows = frame(languages).astype({"language": object})
    pd.testing.assert_frame_equal(
        in_language(rows, language), rows[rows["language"] == language]
    )
    assert in_language(rows, ALL) is rows
