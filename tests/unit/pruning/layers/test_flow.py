"""Activations come back as they were put, from memory and from disk."""

from __future__ import annotations

import pytest
import torch

from pruning.layers.flow import activations
from pruning.model.packing import Batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("limit", "spilled"), [(10**6, False), (0, True)])
def test_what_is_put_comes_back(dtype, limit, spilled, tmp_path):
    made = [Batch((torch.zeros(length),), (i,)) for i, length in enumerate((5, 3, 3))]
    with activations(made, 4, dtype, torch.device("cpu"), limit, tmp_path) as held:
        assert held.bytes == 44 * dtype.itemsize
        for _ in range(2):  # the second layer writes over the first
            values = [torch.randn(1, length, 4).to(dtype) for length in (5, 3, 3)]
            for number, value in enumerate(values):
                held.put(number, value)
            assert bool(held.held) is not spilled
            assert all(torch.equal(held.get(number), value) for number, value in enumerate(values))
    assert not list(tmp_path.iterdir())
