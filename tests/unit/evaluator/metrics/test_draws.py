"""Intervals by random weights of contexts, against a loop and against their definition."""

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics.draws import NO_END, intervals, over_languages
from evaluator.metrics.intervals import Mean, too_few

RATE = [(0.0,), (1.0,)]


def rate(mean: np.ndarray) -> np.ndarray:
    return mean


def test_of_a_mean_they_are_gaffkes_bound_within_the_noise_of_the_draws():
    rng = np.random.default_rng(0)
    contexts = np.repeat(np.arange(40), 3)
    values = (rng.random(120) < 0.7).astype(np.float64)
    (found,) = intervals(rate, [values], contexts, RATE)
    assert found == pytest.approx(Mean(values, contexts).interval(), abs=0.01)


def test_they_are_those_of_a_loop_over_weights():
    """Kappa-like: a product of means. Weights are drawn anew, the added context is looked for by hand."""
    rng = np.random.default_rng(1)
    first, second = (rng.random((2, 60)) < 0.6).astype(np.float64)
    (found,) = intervals(np.multiply, [first, second], np.arange(60), [(0, 0), (0, 1), (1, 0), (1, 1)])
    weights = np.random.default_rng(2).standard_exponential((20_000, 61))
    weights /= weights.sum(axis=1, keepdims=True)
    ends = []
    for added, share in ((0.0, 2.5), (1.0, 97.5)):
        drawn = (weights @ np.append(first, added)) * (weights @ np.append(second, added))
        ends.append(np.percentile(drawn, share))
    assert found == pytest.approx(ends, abs=0.012)


def test_rows_at_once_are_those_of_each():
    rng = np.random.default_rng(3)
    rows, contexts = rng.random((4, 30)), np.arange(30) // 2
    together = intervals(np.multiply, [rows, rows[0]], contexts, [(0, 0), (1, 1)])
    alone = [intervals(np.multiply, [row, rows[0]], contexts, [(0, 0), (1, 1)])[0] for row in rows]
    assert np.array(together) == pytest.approx(np.array(alone), rel=1e-5)


def test_equal_values_give_equal_intervals_whatever_their_contexts_are_called():
    values = (np.random.default_rng(4).random(50) < 0.4).astype(np.float64)
    assert intervals(rate, [values], np.arange(50), RATE) == intervals(rate, [values], 900 - np.arange(50), RATE)


def test_too_few_contexts_and_a_statistic_without_an_end_say_so():
    assert intervals(rate, [np.ones(4)], np.array([0, 0, 1, 1]), RATE) == [too_few(2)]

    def undefined(mean):
        return np.where(mean > 0.9, mean, np.nan)

    assert intervals(undefined, [np.ones(10)], np.arange(10), RATE) == [NO_END]


def test_a_mean_over_languages_weighs_languages_alike():
    languages = pd.Series(["a"] * 90 + ["b"] * 10)
    values = np.repeat([1.0, 0.0, 1.0], [90, 5, 5])
    mean, parts, kinds = over_languages(rate, [values], languages, RATE)
    assert float(mean(*(np.asarray(part.mean()) for part in parts))) == pytest.approx((1 + 0.5) / 2)
    ((low, high),) = intervals(mean, parts, np.arange(100), kinds)
    assert 0.5 < low < 0.75 < high < 1
