"""Hessians are summed by blocks of their upper triangle."""

import pytest
import torch

from pruning.layers.flow import add_second_moments, mirror


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("tokens", "columns"), [(5, 3), (700, 300), (192, 512), (1000, 520)]
)
def test_second_moments_are_those_of_the_whole_product(tokens, columns, dtype):
    total = torch.zeros(columns, columns, dtype=dtype)
    parts = [torch.randn(tokens, columns, dtype=dtype) for _ in range(2)]
    for part in parts:
        add_second_moments(total, part)
    mirror(total)
    wanted = sum(part.double().T @ part.double() for part in parts)
    assert torch.equal(total[256:, :256], total[:256, 256:].T)
    torch.testing.assert_close(
        total.double(), wanted, rtol=1e-5, atol=2e-5 * tokens**0.5
    )
