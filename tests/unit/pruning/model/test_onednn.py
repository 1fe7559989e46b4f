"""A GPU's memory counters, and products by oneDNN: bit for bit torch's, in Hessians within rounding."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pruning.model import memory, onednn


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("columns", "rows"), [(768, 256), (192, 512), (1000, 300)])
def test_a_linear_s_bits_are_torch_s(columns, rows, bias):
    plain = nn.Linear(columns, rows, bias=bias).requires_grad_(False)
    quick = onednn.Linear(plain)
    with torch.no_grad():
        for tokens in (3, 64, 100, 512, 100):
            inputs = torch.randn(1, tokens, columns)
            wanted = functional.linear(inputs, plain.weight, plain.bias)
            for _ in range(2):  # the first call with a shape compares, the second relies on it
                assert torch.equal(quick(inputs), wanted)


def test_a_changed_weight_is_used_once_the_old_one_is_forgotten():
    plain = nn.Linear(512, 512, bias=False).requires_grad_(False)
    quick = onednn.Linear(plain)
    inputs = torch.randn(128, 512)
    with torch.no_grad():
        quick(inputs)
        quick(inputs)
        quick.weight.data = torch.randn(512, 512)
        quick.forget()
        assert torch.equal(quick(inputs), functional.linear(inputs, quick.weight))


def test_a_shape_whose_bits_differ_stays_with_torch(monkeypatch):
    monkeypatch.setattr(onednn, "_agreed", {})
    quick = onednn.Linear(nn.Linear(512, 512, bias=False).requires_grad_(False))
    calls = []

    def rounded_otherwise(left, right):
        calls.append(left)
        return torch.full((len(left), 512), 1.0)

    monkeypatch.setattr(onednn, "times_transposed", rounded_otherwise)
    inputs = torch.randn(128, 512)
    with torch.no_grad():
        for count in (128, 128, 100):
            assert torch.equal(quick(inputs[:count]), functional.linear(inputs[:count], quick.weight))
    assert len(calls) == 3  # one comparison: three stretches of columns, by the first call


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("tokens", "columns"), [(5, 3), (700, 300), (192, 512), (1000, 520)])
def test_second_moments_are_those_of_the_whole_product(tokens, columns, dtype):
    total = torch.zeros(columns, columns, dtype=dtype)
    parts = [torch.randn(tokens, columns, dtype=dtype) for _ in range(2)]
    for part in parts:
        onednn.add_second_moments(total, part)
    onednn.mirror(total)
    wanted = sum(part.double().T @ part.double() for part in parts)
    assert torch.equal(total[256:, :256], total[:256, 256:].T)
    torch.testing.assert_close(total.double(), wanted, rtol=1e-5, atol=2e-5 * tokens**0.5)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_is_started_before_its_counters_are_reset(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to reset the counters of a numbered device before that."""
    called: list[object] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: called.append("init"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", called.append)
    memory.reset_peak(torch.device(name))
    assert called == ["init", torch.device(name)]
