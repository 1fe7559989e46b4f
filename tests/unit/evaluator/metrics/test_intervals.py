"""Intervals and tests against scipy and statsmodels, and the bootstrap against simulation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, bootstrap
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from evaluator.metrics import Inputs, intervals, reduce_records
from evaluator.metrics.drops import drop_of
from evaluator.metrics.intervals import (
    Resampler,
    holm,
    mcnemar_exact,
    percentile_interval,
    percentile_intervals,
    wilson,
)
from evaluator.metrics.measures import language_mean
from evaluator.metrics.tables.matching import scott_pi
from tests.support.records import Seen, records


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_equals_scipys(count_n):
    count, n = count_n
    expected = binomtest(count, n).proportion_ci(method="wilson")
    assert wilson(count, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_equals_statsmodels_and_keeps_to_zero_and_one(count_n):
    count, n = count_n
    low, high = wilson(count, n)
    assert (low, high) == pytest.approx(proportion_confint(count, n, method="wilson"), abs=1e-12)
    assert 0.0 <= low <= count / n <= high <= 1.0
    assert (low == 0.0) == (count == 0)
    assert (high == 1.0) == (count == n)


def test_wilson_covers_at_its_nominal_rate():
    rng = np.random.default_rng(11)
    for n, p in ((40, 0.1), (100, 0.3), (200, 0.5)):
        counts = rng.binomial(n, p, 2000)
        covered = np.mean([low <= p <= high for low, high in (wilson(int(count), n) for count in counts)])
        assert 0.93 <= covered <= 0.975


def test_percentiles_of_many_rows_are_those_of_each_to_the_last_digit():
    draws = np.random.default_rng(12).normal(size=(40, 2000))
    draws[3, :100], draws[4, :300], draws[5], draws[6, 0] = np.nan, np.nan, np.nan, np.inf
    assert percentile_intervals(draws) == [percentile_interval(each) for each in draws]
    assert percentile_intervals(draws[:0]) == []


def test_no_trials_have_no_interval():
    assert wilson(0, 0) == (None, None)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_statsmodels(only_first, only_second):
    expected = mcnemar([[5, only_first], [only_second, 7]], exact=True).pvalue
    assert mcnemar_exact(only_first, only_second) == pytest.approx(min(1.0, expected))
    assert mcnemar_exact(only_first, only_second) == mcnemar_exact(only_second, only_first)
    if only_first + only_second:
        assert mcnemar_exact(only_first, only_second) == pytest.approx(
            binomtest(only_first, only_first + only_second).pvalue
        )


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
    weights = np.stack([resampler.means(np.arange(5), np.eye(5)[row])[0] * 5 for row in range(5)])
    assert np.allclose(weights[:3].sum(axis=0), 3)
    assert np.allclose(weights[3:].sum(axis=0), 2)
    assert np.allclose(weights, np.round(weights))


def test_items_of_one_cluster_are_drawn_together():
    resampler = Resampler("t", ["a"] * 4, ["x", "x", "y", "z"], draws=50)
    first, second = resampler.means(np.arange(4), *np.eye(4)[:2])
    assert np.array_equal(first, second)
    assert resampler.clusters(np.arange(4)) == 3


def test_draws_do_not_depend_on_which_other_items_are_asked_for():
    resampler = Resampler("t", ["a"] * 6, apart(6), draws=20)
    both = resampler.means(np.arange(2), np.array([1.0, 0.0]), np.array([0.0, 1.0])).sum(axis=0)
    assert np.allclose(both[np.isfinite(both)], 1.0)
    apart_items = resampler.means(np.array([5, 1]), np.array([1.0, 0.0]))[0]  # any order, with items between
    swapped = resampler.means(np.array([1, 5]), np.array([0.0, 1.0]))[0]
    assert np.array_equal(apart_items, swapped, equal_nan=True)


def test_a_context_in_two_languages_is_one_unit_and_a_third_language_is_apart():
    languages, clusters = ["a", "a", "b", "b", "c", "c"], ["x", "y", "x", "y", "v", "w"]
    resampler = Resampler("t", languages, clusters, draws=60)
    weights = resampler.means(np.arange(6), *np.eye(6)) * 6
    assert np.allclose(weights[:2], weights[2:4])
    assert not np.allclose(weights[:2], weights[4:])
    assert resampler.clusters(np.arange(6)) == 4
    assert np.allclose(weights[4:].sum(axis=0), 2)


def test_the_median_interval_is_that_of_resampled_medians():
    """The same draws, taken item by item with numpy."""
    small = np.array([21.0, 1.0, 2.0, 3.0, 8.0, 20.0, 1.0])
    large = np.random.default_rng(2).integers(1, 30, 300).astype(float)
    for values in (small, large):
        n = len(values)
        resampler = Resampler("t", ["a"] * n, apart(n), draws=200)
        weights = np.round(resampler.means(np.arange(n), *np.eye(n)) * n).astype(int)
        medians = [np.median(np.repeat(values, column)) for column in weights.T]
        assert resampler.median_interval(np.arange(n), values) == percentile_interval(np.array(medians))


def test_a_median_far_from_the_middle_of_the_items_is_found_all_the_same():
    """One cluster holds 150 of 159 items: a resample without it lies wholly in the tails."""
    values = np.array([*np.arange(4.0), *np.full(150, 50.0), *np.arange(100.0, 105.0)])
    member = [*apart(4), *["big"] * 150, *[f"d{number}" for number in range(5)]]
    resampler = Resampler("t", ["a"] * 159, member, draws=400)
    medians = []
    for shares in resampler.means(np.arange(159), *np.eye(159)).T:
        upto = shares.cumsum()
        medians.append((values[np.argmax(upto > 0.5 - 1e-9)] + values[np.argmax(upto > 0.5 + 1e-9)]) / 2)
    assert resampler.median_interval(np.arange(159), values) == percentile_interval(np.array(medians))


def test_intervals_equal_scipys_percentile_bootstrap_within_its_noise():
    rng = np.random.default_rng(3)
    values = rng.integers(-1, 2, 150).astype(float)
    ours = Resampler("t", ["a"] * 150, apart(150), draws=8000).mean_interval(np.arange(150), values)
    theirs = bootstrap((values,), np.mean, n_resamples=8000, method="percentile", rng=rng).confidence_interval
    assert ours == pytest.approx(tuple(theirs), abs=0.012)


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


def test_translated_contexts_are_covered_when_languages_are_pooled():
    """60 contexts in four languages whose differences move together: resampling each language alone would cover far
    too seldom."""
    rng = np.random.default_rng(9)
    contexts, languages, trials, covered, alone = 60, 4, 200, 0, 0
    names = [language for language in "abcd" for _ in range(contexts)]
    numbers = np.arange(contexts * languages)
    joint = Resampler("t", names, apart(contexts) * languages, draws=400)
    apart_each = Resampler("t", names, [f"{a}{b}" for a, b in zip(names, apart(contexts) * languages, strict=True)])
    for _ in range(trials):
        shift = np.tile(rng.normal(0.0, 1.0, contexts), languages)
        values = 0.2 + shift + rng.normal(0.0, 0.5, contexts * languages)
        low, high = joint.mean_interval(numbers, values)
        covered += low <= 0.2 <= high
        low, high = apart_each.mean_interval(numbers, values)
        alone += low <= 0.2 <= high
    assert 0.89 <= covered / trials <= 0.985
    assert alone / trials < 0.85


def test_the_interval_of_delta_pr_covers_at_its_nominal_rate():
    """Open falls from 0.8 to 0.5, choice from 0.9 to 0.8 with four options: 0.3 / 0.8 - 0.1 / 0.65."""
    rng, n, trials, covered = np.random.default_rng(7), 250, 200, 0
    resampler = Resampler("t", ["a"] * n, apart(n), draws=400)
    truth = 0.3 / 0.8 - 0.1 / 0.65
    for _ in range(trials):
        easy = rng.random((2, n))  # one draw decides both sides: the pairs are correlated
        items = pd.DataFrame({"item": np.arange(n), "options_dense": 4.0})
        for side, said, picked in (("dense", 0.8, 0.9), ("pruned", 0.5, 0.8)):
            items[f"produced_{side}"], items[f"recognised_{side}"] = easy[0] < said, easy[1] < picked
        opened, chosen = (drop_of(resampler, items, probe).normal_draws for probe in ("greedy", "choice"))
        low, high = resampler.interval(np.arange(n), opened - chosen)
        covered += low <= truth <= high
    assert 0.9 <= covered / trials <= 0.985


def test_the_interval_of_a_median_covers_at_its_nominal_rate():
    rng, n, trials, covered = np.random.default_rng(8), 81, 200, 0
    resampler = Resampler("t", ["a"] * n, apart(n), draws=400)
    for _ in range(trials):
        low, high = resampler.median_interval(np.arange(n), rng.exponential(1.0, n))
        covered += low <= np.log(2) <= high
    assert 0.9 <= covered / trials <= 0.985


def test_the_interval_of_a_mean_over_languages_covers_at_its_nominal_rate():
    """Three languages of 20 to 160 items: the pooled interval is about another number and misses the mean of rates."""
    rng, trials, covered, pooled = np.random.default_rng(12), 200, 0, 0
    sizes, rates = {"a": 160, "b": 60, "c": 20}, {"a": 0.8, "b": 0.5, "c": 0.2}
    outcomes = reduce_records(
        records("m", {f"{name}/{name}{i}": Seen(greedy=True) for name, size in sizes.items() for i in range(size)})
    )
    inputs = Inputs(outcomes)
    items = inputs.outcomes_of("m", "t", "open")
    right = items["language"].map(rates).to_numpy()
    for _ in range(trials):
        values = (rng.random(len(items)) < right).astype(float)
        row = language_mean(inputs, "t", items, share=values)
        assert row["share"] == pytest.approx(np.mean([values[items["language"] == name].mean() for name in sizes]))
        covered += row["share_low"] <= 0.5 <= row["share_high"]
        low, high = wilson(int(values.sum()), len(values))
        pooled += low <= 0.5 <= high
    assert 0.9 <= covered / trials <= 0.985
    assert pooled / trials < 0.1


def test_the_interval_of_scotts_pi_covers_at_its_nominal_rate():
    """Two graders of a truth that is yes for 60 %, each right in 90 %: p_o = 0.82, p = 0.58, pi = 0.6305."""
    rng, n, trials, covered = np.random.default_rng(13), 200, 200, 0
    resampler = Resampler("t", ["a"] * n, apart(n), draws=400)
    chance = 0.58**2 + 0.42**2
    for _ in range(trials):
        truth = rng.random(n) < 0.6
        one, other = (np.where(rng.random(n) < 0.9, truth, ~truth).astype(float) for _ in range(2))
        draws = resampler.means(np.arange(n), (one == other).astype(float), one, other)
        low, high = resampler.interval(np.arange(n), scott_pi(*draws))
        covered += low <= (0.82 - chance) / (1 - chance) <= high
    assert 0.9 <= covered / trials <= 0.985


@pytest.mark.parametrize("items", [1, 30, 270, 1800])
def test_sums_in_blocks_are_the_sums(items, monkeypatch):
    rng = np.random.default_rng(items)
    weights = rng.multinomial(items, np.full(items, 1 / items), size=2000).T.astype(np.float32)
    lost = rng.integers(-1, 2, (3, items)).astype(np.float32)
    shares = rng.random((3, items), dtype=np.float32)
    blocks = intervals._product(lost, weights)
    assert np.array_equal(intervals._product(shares, weights), shares @ weights)
    monkeypatch.setattr(intervals, "_ONE_THREAD", 0)
    assert np.array_equal(blocks, intervals._product(lost, weights))
    assert np.array_equal(blocks, np.rint(lost.astype(np.float64) @ weights))
