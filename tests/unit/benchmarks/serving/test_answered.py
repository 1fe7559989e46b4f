"""Both sides of a benchmark answer the same items, and a swapped engine gives a new
one's numbers."""

import pytest

from benchmarks.serving import swap
from benchmarks.serving.__main__ import answered

ONE = {"greedy": {"a": [1], "b": [3]}, "scores": {"a": {"0": -1.0}}}
HALF = {"dtype": "bfloat16"}


@pytest.mark.parametrize(
    ("agree", "ours", "theirs", "holds"),
    [
        (answered, ONE, {**ONE, "greedy": {"b": [4], "a": [2]}}, True),
        (answered, ONE, {**ONE, "greedy": {"a": [1]}}, False),
        (answered, ONE, {"scores": {}}, False),
        (swap.agree, {"logprobs": [-1.0]}, {"logprobs": [-1.0]}, True),
        (swap.agree, {"logprobs": [-1.0]}, {"logprobs": [-1.05]}, False),
        (swap.agree, {"logprobs": [-1.0], **HALF}, {"logprobs": [-1.05]}, True),
        (swap.agree, {"logprobs": [-1.0], **HALF}, {"logprobs": [-1.2]}, False),
    ],
)
def test_sides_are_compared(agree, ours, theirs, holds):
    assert agree(ours, theirs).holds is holds
