"""What guessing gives, where items have different numbers of options."""

import pandas as pd
import pytest

from evaluator.metrics.drops import floor_of, over_headroom


def test_guessing_is_one_in_k_for_each_item():
    items = pd.DataFrame({"options_dense": pd.array([2, 4, 5, 10], "Int64")})
    assert floor_of(items, "choice", "_dense") == pytest.approx((0.5 + 0.25 + 0.2 + 0.1) / 4)
    assert floor_of(items, "greedy", "_dense") == 0
    five = pd.DataFrame({"options_dense": pd.array([5, 5], "Int64")})
    drop, reason = over_headroom(0.2, 0.6, floor_of(five, "choice", "_dense"))
    assert (drop, reason) == (pytest.approx(0.2 / (0.6 - 0.2)), None)
