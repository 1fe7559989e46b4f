"""Intervals and tests against scipy and statsmodels, and the bootstrap against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from evaluator.metrics.intervals import Resampler, holm, mcnemar_exact, percentile_interval, wilson


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_equals_scipys(count_n):
    count, n = count_n
    expected = binomtest(count, n).proportion_ci(method="wilson")
    assert wilson(count, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_no_trials_have_no_interval():
    assert wilson(0, 0) == (None, None)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_statsmodels(only_first, only_second):
    expected = mcnemar([[5, only_first], [only_second, 7]], exact=True).pvalue
    assert mcnemar_exact(only_first, only_second) == pytest.approx(min(1.0, expected))


@pytest.mark.parametrize("p_values", [[0.3], [0.04, 0.001, 0.03, 0.03, 0.9, 0.0]])
def test_holm_equals_statsmodels(p_values):
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1].tolist())


def test_holm_leaves_a_missing_p_missing_and_uncounted():
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04]
    assert holm([]) == []


def apart(n: int) -> list[str]:
    return [f"c{number}" for number in range(n)]


def test_draws_resample_items_with_replacement_within_each_language():
    resampler = Resampler("t", ["a", "a", "a", "b", "b"], apart(5), draws=50)
    weights = np.stack([resampler.means(np.arange(5), np.eye(5)[row]) * 5 for row in range(5)])
    assert np.allclose(weights[:3].sum(axis=0), 3)
    assert np.allclose(weights[3:].sum(axis=0), 2)
    assert np.allclose(weights, np.round(weights))


def test_items_of_one_cluster_are_drawn_together():
    resampler = Resampler("t", ["a"] * 4, ["x", "x", "y", "z"], draws=50)
    first, second = (resampler.means(np.arange(4), np.eye(4)[row]) for row in (0, 1))
    assert np.array_equal(first, second)
    assert resampler.clusters(np.arange(4)) == 3


def test_draws_do_not_depend_on_which_other_items_are_asked_for():
    resampler = Resampler("t", ["a"] * 6, apart(6), draws=20)
    both = resampler.means(np.arange(2), np.array([1.0, 0.0])) + resampler.means(np.arange(2), np.array([0.0, 1.0]))
    assert np.allclose(both[np.isfinite(both)], 1.0)


def test_one_cluster_has_no_interval():
    resampler = Resampler("t", ["a"] * 3, ["x"] * 3)
    assert resampler.mean_interval(np.arange(3), np.array([0.0, 1.0, 1.0])) == (None, None)
    assert resampler.median_interval(np.arange(3), np.array([0.0, 1.0, 1.0])) == (None, None)


def test_an_interval_over_mostly_undefined_draws_is_undefined():
    assert percentile_interval(np.array([1.0] * 8 + [np.nan] * 2)) == (None, None)
    assert percentile_interval(np.array([1.0] * 99 + [np.nan])) == (1.0, 1.0)


def test_the_median_interval_brackets_the_median():
    values = np.arange(41, dtype=np.float64)
    low, high = Resampler("t", ["a"] * 41, apart(41)).median_interval(np.arange(41), values)
    assert low is not None
    assert high is not None
    assert 10 <= low < 20 < high <= 30


@pytest.mark.parametrize(("clusters", "per_cluster"), [(100, 1), (40, 4)])
def test_the_bootstrap_covers_a_paired_difference_at_its_nominal_rate(clusters, per_cluster):
    """Items of one cluster are correlated: the clustered interval must still cover near 95 %."""
    rng = np.random.default_rng(5)
    n, trials, covered = clusters * per_cluster, 300, 0
    member = [f"c{number // per_cluster}" for number in range(n)]
    resampler = Resampler("t", ["a"] * n, member, draws=400)
    for _ in range(trials):
        shift = np.repeat(rng.normal(0.0, 0.15, clusters), per_cluster)
        dense = rng.random(n) < np.clip(0.7 + shift, 0, 1)
        pruned = rng.random(n) < np.clip(0.5 - shift, 0, 1)
        low, high = resampler.mean_interval(np.arange(n), dense.astype(float) - pruned.astype(float))
        covered += low <= 0.2 <= high
    assert 0.91 <= covered / trials <= 0.985
