"""Tests of paired outcomes against statsmodels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from evaluator.metrics.intervals import holm, mcnemar_p


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_equals_statsmodels(only_first, only_second):
    expected = mcnemar([[5, only_first], [only_second, 7]], exact=True).pvalue
    first = np.repeat([1.0, 0.0, 1.0, 0.0], [only_first, only_second, 5, 7])
    second = np.repeat([0.0, 1.0, 1.0, 0.0], [only_first, only_second, 5, 7])
    assert mcnemar_p(first, second) == mcnemar_p(second, first) == pytest.approx(min(1.0, expected))


@pytest.mark.parametrize("p_values", [[0.3], [0.04, 0.001, 0.03, 0.03, 0.9, 0.0]])
def test_holm_equals_statsmodels(p_values):
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1].tolist())


def test_holm_leaves_a_missing_p_missing_and_uncounted():
    assert holm([0.01, None, 0.04]) == [0.02, None, 0.04]
    assert holm([]) == []
    assert mcnemar_p(np.array([]), np.array([])) is None
