"""OWL's ratios."""

from __future__ import annotations

import pytest

from evaluator.core.errors import InputError
from pruning.layers.sequential import owl


def test_layers_with_more_outliers_keep_more():
    ratios = [pattern.ratio for pattern in owl([0.01, 0.04, 0.02, 0.01], 0.7)]
    assert sum(ratios) / 4 == pytest.approx(0.7)
    assert max(ratios) - min(ratios) == pytest.approx(0.16)
    assert ratios[1] < ratios[2] < ratios[0] == ratios[3]


def test_equal_layers_are_pruned_alike():
    assert [pattern.ratio for pattern in owl([0.1, 0.1], 0.5)] == [0.5, 0.5]


@pytest.mark.parametrize("ratio", [0.02, 0.97])
def test_a_ratio_out_of_range_names_the_layer(ratio):
    with pytest.raises(InputError, match=f"sparsity: {ratio} with allocation 'owl' gives layer"):
        owl([0.0, 1.0, 0.5], ratio)
