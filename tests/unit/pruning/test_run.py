"""Whole jobs on tiny models against the brute force."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pruning.config import CalibrationConfig, PruneConfig
from pruning.manifest import read_manifest, verify
from pruning.run import prune
from tests.unit.pruning import brute_force, tiny

WINDOW = 32


def config(source: Path, passages: Path, method: str = "wanda", **fields) -> PruneConfig:
    if "pattern" not in fields:
        fields.setdefault("sparsity", 0.5)
    calibration = CalibrationConfig(source=f"text:{passages}", samples=12, sequence_length=WINDOW)
    return PruneConfig(source=source, method=method, calibration=calibration, device="cpu", **fields)


def sequences(source: Path) -> list[torch.Tensor]:
    return brute_force.sequences_of(source, tiny.lines(40)[:12], WINDOW)


@pytest.mark.parametrize("name", tiny.ARCHITECTURES)
@pytest.mark.parametrize("pattern", [0.5, (2, 4)], ids=["half", "2of4"])
def test_wanda_equals_the_brute_force_bit_for_bit(name, pattern, checkpoints, passages, tmp_path):
    source = checkpoints(name)
    n_of_m = pattern if isinstance(pattern, tuple) else None
    fields = {"pattern": "2:4"} if n_of_m else {"sparsity": pattern}
    prune(config(source, passages, **fields), tmp_path / "out")
    expected = brute_force.prune(
        source,
        sequences(source),
        lambda weight, norm_sq: brute_force.wanda_mask(weight, norm_sq, 0.5, n_of_m),
    )
    dense, pruned = tiny.weights(source), tiny.weights(tmp_path / "out")
    assert expected.keys() < dense.keys()
    for tensor, weight in dense.items():
        mask = expected.get(tensor)
        wanted = weight if mask is None else weight.masked_fill(mask, 0)
        assert torch.equal(pruned[tensor].view(torch.int16), wanted.view(torch.int16)), tensor
    assert verify(tmp_path / "out") == []
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert manifest.measured_sparsity == 0.5
