"""Counts are those of every zero, of either sign."""

from __future__ import annotations

import pytest
import torch

from pruning.methods.masks import count_true, count_zeros


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_of_either_sign_count_and_the_smallest_number_does_not(dtype):
    smallest = torch.tensor([1], dtype={2: torch.int16, 4: torch.int32}[dtype.itemsize]).view(dtype)
    weight = torch.tensor([[0.0, -0.0, 1.0, -1.0], [0.0, 3.0, float("inf"), 0.0]]).to(dtype)
    weight[1, 3] = smallest[0]
    assert count_zeros(weight) == 3
    assert count_zeros(weight.T) == 3


def test_a_mask_is_counted():
    assert count_true(torch.tensor([[True, False], [True, True]])) == 3
