"""The machine's peak, and the time that forwards would take at it."""

import pytest
import torch

from benchmarks import roofline
from tests.support import checkpoint_files


def test_bounds_by_hand(tmp_path):
    tensors = {"a.weight": torch.zeros(3, 5), "a.bias": torch.zeros(5)}
    model = checkpoint_files.write(tmp_path / "model", tensors)
    machine = {
        "threads": 2,
        "element_bytes": 2,
        "flops_per_second": 100.0,
        "bytes_per_second": 10.0,
    }
    bounds = roofline.bounds(model, machine, forwards=10, steps=3, seconds=48.0)
    assert bounds["compute_bound_s"] == 2 * 20 * 10 / 100
    assert bounds["memory_bound_s"] == 20 * 2 * 3 / 10
    assert bounds["share_of_wall"] == 12 / 48


@pytest.mark.parametrize(("dtype", "element_bytes"), [("float32", 4), ("bfloat16", 2)])
def test_peak_has_plausible_rates(monkeypatch, dtype, element_bytes):
    monkeypatch.setattr(roofline, "_SECONDS", 0.01)
    monkeypatch.setattr(roofline, "_ON_CPU", (64, 2**16))
    machine = roofline.measure(dtype)
    assert machine["element_bytes"] == element_bytes
    assert 1e6 < machine["flops_per_second"] < 1e14
    assert 1e6 < machine["bytes_per_second"] < 1e14
