"""Pruning on a GPU: counts are exact, and masks are the CPU's but for scores that differ by rounding alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune
from pruning.verify import verify
from tests.support import pruning as tiny

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module", params=tiny.ARCHITECTURES)
def source(request, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp(request.param)
    tiny.build(request.param, directory, torch.float32)
    return directory


@pytest.mark.parametrize("method", ["magnitude", "wanda", "ria", "sparsegpt"])
@pytest.mark.parametrize("fields", [{"sparsity": 0.5}, {"pattern": "2:4"}], ids=["half", "2of4"])
def test_a_gpu_prunes_as_a_cpu_does(source, method, fields, tmp_path):
    passages = tmp_path / "passages.txt"
    passages.write_text("\n".join(tiny.lines(40)), encoding="utf-8")
    calibration = CalibrationConfig(source=f"text:{passages}", samples=40, sequence_length=32)
    job = PruneConfig(source=source, method=method, calibration=calibration, device="cpu", **fields)
    prune(job, tmp_path / "cpu")
    manifest = prune(job.model_copy(update={"device": "cuda"}), tmp_path / "cuda")
    assert verify(tmp_path / "cuda") == []
    assert manifest.peak_memory_bytes > 0
    one, two = tiny.weights(tmp_path / "cpu"), tiny.weights(tmp_path / "cuda")
    least = 0.98 if method == "sparsegpt" else 0.999  # the solver's later columns depend on every earlier choice
    for matrix in manifest.matrices:
        assert matrix.zeros == matrix.requested
        agree = ((one[matrix.name] == 0) == (two[matrix.name] == 0)).float().mean()
        assert agree >= least, matrix.name


def test_memory_does_not_grow_with_the_number_of_layers(tmp_path):
    peaks = []
    for layers in (2, 8):
        directory = tmp_path / f"dense-{layers}"
        tiny.build("qwen3", directory, num_hidden_layers=layers, hidden_size=256, intermediate_size=1024)
        passages = tmp_path / "passages.txt"
        passages.write_text("\n".join(tiny.lines(40)), encoding="utf-8")
        calibration = CalibrationConfig(source=f"text:{passages}", samples=40, sequence_length=32)
        job = PruneConfig(source=directory, method="sparsegpt", sparsity=0.5, calibration=calibration, device="cuda")
        peaks.append(prune(job, tmp_path / f"out-{layers}").peak_memory_bytes)
    assert peaks[1] < 1.1 * peaks[0]
