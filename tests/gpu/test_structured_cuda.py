"""Layers, heads and channels on a GPU: those that a CPU takes out, but for scores that differ by rounding alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pruning.config import CalibrationConfig, PruneConfig
from pruning.methods.patterns import read_numbers
from pruning.run import prune
from pruning.verify import verify
from tests.support import pruning as tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module", params=["qwen3", "phi3", "gemma3_text"])
def source(request, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    tiny.build(request.param, directory, torch.float32)
    return directory


@pytest.mark.parametrize("method", ["layers", "heads", "channels"])
def test_a_gpu_takes_out_what_a_cpu_does(source, method, tmp_path):
    passages = tmp_path / "passages.txt"
    passages.write_text("\n".join(tiny.lines(40)), encoding="utf-8")
    calibration = CalibrationConfig(source=f"text:{passages}", samples=40, sequence_length=32)
    job = PruneConfig(source=source, method=method, sparsity=0.5, calibration=calibration, device="cpu")
    one = prune(job, tmp_path / "cpu").removed
    other = prune(job.model_copy(update={"device": "cuda"}), tmp_path / "cuda").removed
    assert one is not None
    assert other is not None
    assert verify(tmp_path / "cuda") == []
    assert (one.unit, one.of) == (other.unit, other.of)
    for ours, theirs in zip(one.gone, other.gone, strict=True):
        same = {*read_numbers(ours)} & {*read_numbers(theirs)}
        assert len(same) >= 0.95 * len(read_numbers(ours))
    if one.distances is not None:
        assert other.distances == pytest.approx(one.distances, abs=1e-3)
