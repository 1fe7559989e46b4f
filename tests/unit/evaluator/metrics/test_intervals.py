"""Intervals over contexts and tests of paired outcomes, against scipy, statsmodels,
loops and special cases."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betaincc
from scipy.stats import binomtest, norm
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from evaluator.metrics.bootstrap import NO_END, intervals, language_intervals
from evaluator.metrics.intervals import (
    FEWEST,
    Mean,
    Ratio,
    _positive,
    holm,
    mcnemar_p,
    too_few,
)
from evaluator.metrics.items import Items


def flags(count: int, n: int) -> np.ndarray:
    return (np.arange(n) < count).astype(np.float64)


@given(
    st.integers(FEWEST, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))
)
@settings(max_examples=60)
def test_a_rate_is_clopper_and_pearsons(count_n):
    count, n = count_n
    expected = binomtest(count, n).proportion_ci(method="exact")
    assert Mean(flags(count, n), np.arange(n)).interval() == pytest.approx(
        (expected.low, expected.high), abs=1e-9
    )


def test_p_value_equals_random_weights():
    """A drop of 4 of 12 items: 200,000 draws of Dirichlet weights, one more context at
    the worst.

    Its size is that of an item's own context in the mean: (3 * 1 + 9 * 3) / 12 = 2.5.
    """
    contexts = np.repeat(np.arange(6), [1, 1, 1, 3, 3, 3])
    values = np.array([1, 0, -1, 1, 1, 1, 1, 0, 0, 0, 0, 0], dtype=np.float64)
    # one context lost all of its items: so may the added one
    sums = np.append(np.bincount(contexts, values), 2.5)
    weights = np.random.default_rng(0).standard_exponential((200_000, 7))
    drawn = (weights @ sums) / (weights @ [1, 1, 1, 3, 3, 3, 2.5])
    mean = Mean(values, contexts, low=-1)
    for margin in (0.1, 0.3, 0.5):
        assert mean.p_at_least(margin) == pytest.approx(
            (drawn > margin).mean(), abs=0.004
        )
    assert mean.p_at_least(mean.upper(0.05)) == pytest.approx(0.05, abs=1e-7)
    assert mean.p_at_most(mean.lower(0.025)) == pytest.approx(0.025, abs=1e-7)
    # Of a ratio, only the upper sum counts in the added context, or only the lower one.
    over, under = np.tile([1.0, 0, 0], 4), np.tile([1.0, 0, 1], 4)
    tops, bottoms = (
        weights[:, :6] @ np.bincount(contexts, flags) for flags in (over, under)
    )
    added, ratio = 2.5 * weights[:, 6], Ratio(over, under, contexts)
    for margin in (0.4, 0.6, 0.9):
        assert ratio.p_at_least(margin) == pytest.approx(
            ((tops + added) / bottoms > margin).mean(), abs=0.004
        )
        assert ratio.p_at_most(margin) == pytest.approx(
            (tops / (bottoms + added) < margin).mean(), abs=0.004
        )


def test_intervals_of_many_contexts():
    """They give the normal interval."""
    rng = np.random.default_rng(1)
    contexts = np.repeat(np.arange(1000), 5)
    values = (rng.random(5000) < np.repeat(rng.beta(4, 2, 1000), 5)).astype(np.float64)
    low, high = Mean(values, contexts).interval()
    sums = np.bincount(contexts, values - values.mean())
    error = np.sqrt((sums**2).sum()) / 5000
    assert high - low == pytest.approx(2 * norm.isf(0.025) * error, rel=0.05)


def test_intervals_of_few_contexts():
    assert Mean(flags(1, 4), np.array([0, 0, 1, 1])).interval() == too_few(2)
    with pytest.raises(ValueError, match="an item"):
        Mean(np.array([]), np.array([], dtype=np.intp))
    assert Ratio(flags(2, 5), np.zeros(5), np.arange(5)).upper(0.05) == float("inf")


def test_far_p_value_is_small():
    """The saddle point lies close to a pole. It was missed there, and one p-value
    was 3e20."""
    for n, lost, margin in ((3000, 15, 0.02), (2000, 14, 0.03), (5000, 1, 0.1)):
        values = np.repeat([1.0, 0.0], [lost, n - lost])
        assert 0 <= Mean(values, np.arange(n), low=-1).p_at_least(margin) < 1e-9


@given(st.integers(10, 5000), st.integers(1, 30), st.floats(0.001, 0.3))
def test_the_integral_is_the_exact_probability(others, own, margin):
    terms, counts = (
        np.array([-margin, 1 - margin]),
        np.array([others, own], dtype=np.float64),
    )
    exact = betaincc(own, others, margin)
    assert _positive(terms, np.zeros(2), counts)[0] == pytest.approx(
        exact, rel=2e-3, abs=1e-14
    )


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_statsmodels(only_first, only_second):
    expected = mcnemar([[5, only_first], [only_second, 7]], exact=True).pvalue
    first = np.repeat([1.0, 0.0, 1.0, 0.0], [only_first, only_second, 5, 7])
    second = np.repeat([0.0, 1.0, 1.0, 0.0], [only_first, only_second, 5, 7])
    assert (
        mcnemar_p(first, second)
        == mcnemar_p(second, first)
        == pytest.approx(min(1.0, expected))
    )


def test_holm_equals_statsmodels():
    p_values = [0.04, 0.001, 0.03, 0.03, 0.9, 0.0]
    expected = multipletests(p_values, method="holm")[1].tolist()
    assert holm(p_values) == pytest.approx(expected)
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04]


RATE = [(0.0,), (1.0,)]


def rate(mean: np.ndarray) -> np.ndarray:
    return mean


def test_bootstrap_of_mean_is_gaffkes():
    """Of a mean they are Gaffke's bound within the noise of the draws."""
    rng = np.random.default_rng(0)
    contexts = np.repeat(np.arange(40), 3)
    values = (rng.random(120) < 0.7).astype(np.float64)
    (found,) = intervals(rate, [values], contexts, RATE)
    assert found == pytest.approx(Mean(values, contexts).interval(), abs=0.01)


def test_bootstrap_equals_loop_over_weights():
    """Kappa-like: a product of means. Weights are drawn anew, the added context is
    looked for by hand."""
    rng = np.random.default_rng(1)
    first, second = (rng.random((2, 60)) < 0.6).astype(np.float64)
    (found,) = intervals(
        np.multiply, [first, second], np.arange(60), [(0, 0), (0, 1), (1, 0), (1, 1)]
    )
    weights = np.random.default_rng(2).standard_exponential((20_000, 61))
    weights /= weights.sum(axis=1, keepdims=True)
    ends = []
    for added, share in ((0.0, 2.5), (1.0, 97.5)):
        drawn = (weights @ np.append(first, added)) * (
            weights @ np.append(second, added)
        )
        ends.append(np.percentile(drawn, share))
    assert found == pytest.approx(ends, abs=0.012)


def test_bootstrap_of_rows_at_once():
    """Rows at once have the intervals of each, whatever their contexts are called."""
    rng = np.random.default_rng(3)
    rows, contexts = rng.random((4, 30)), np.arange(30) // 2
    kinds = [(0, 0), (1, 1)]
    together = intervals(np.multiply, [rows, rows[0]], contexts, kinds)
    for row, ends in zip(rows, together, strict=True):
        (alone,) = intervals(np.multiply, [row, rows[0]], 900 - contexts, kinds)
        assert ends == pytest.approx(alone, rel=1e-5)


def test_bootstrap_without_an_interval():
    few = np.array([0, 0, 1, 1])
    assert intervals(rate, [np.ones(4)], few, RATE) == [too_few(2)]

    def undefined(mean):
        return np.where(mean > 0.9, mean, np.nan)

    assert intervals(undefined, [np.ones(10)], np.arange(10), RATE) == [NO_END]


def test_bootstrap_weighs_languages_alike():
    languages = np.repeat(["a", "b"], [90, 10])
    items = Items.of_columns({"language": languages, "context": np.arange(100)})
    values = np.repeat([1.0, 0.0, 1.0], [90, 5, 5])
    ((low, high),) = language_intervals(rate, [values], items, RATE)
    assert 0.5 < low < (1 + 0.5) / 2 < high < 1
