"""Pruning on a GPU: counts are exact, and masks are the CPU's but for scores that
differ by rounding alone."""

import pytest
import torch

from pruning.methods.patterns import read_numbers
from pruning.run import prune
from pruning.verify import examine
from tests.support import pruning as tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module")
def source(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp(request.param)
    tiny.build(request.param, directory, torch.float32)
    return directory


@pytest.fixture
def passages(tmp_path):
    file = tmp_path / "passages.txt"
    file.write_text("\n".join(tiny.lines(40)), encoding="utf-8")
    return file


@pytest.mark.parametrize("source", tiny.ARCHITECTURES, indirect=True)
@pytest.mark.parametrize("method", ["magnitude", "wanda", "ria", "sparsegpt"])
@pytest.mark.parametrize(
    "fields", [{"sparsity": 0.5}, {"pattern": "2:4"}], ids=["half", "2of4"]
)
def test_gpu_prunes_as_cpu(source, method, fields, passages, tmp_path):
    job = tiny.job(source, passages, method, 40, **fields)
    prune(job, tmp_path / "cpu")
    manifest = prune(job.model_copy(update={"device": "cuda"}), tmp_path / "cuda")
    assert examine(tmp_path / "cuda").problems == []
    assert manifest.peak_memory_bytes > 0
    one, two = tiny.weights(tmp_path / "cpu"), tiny.weights(tmp_path / "cuda")
    # the solver's later columns depend on every earlier choice
    least = 0.98 if method == "sparsegpt" else 0.999
    for matrix in manifest.matrices:
        assert matrix.zeros == matrix.requested
        agree = ((one[matrix.name] == 0) == (two[matrix.name] == 0)).float().mean()
        assert agree >= least, matrix.name


def test_memory_ignores_layer_count(passages, tmp_path):
    peaks = []
    for layers in (2, 8):
        directory = tmp_path / f"dense-{layers}"
        tiny.build(
            "qwen3",
            directory,
            num_hidden_layers=layers,
            hidden_size=256,
            intermediate_size=1024,
        )
        job = tiny.job(directory, passages, "sparsegpt", 40, device="cuda")
        peaks.append(prune(job, tmp_path / f"out-{layers}").peak_memory_bytes)
    assert peaks[1] < 1.1 * peaks[0]


@pytest.mark.parametrize("source", ["qwen3", "phi3", "gemma3_text"], indirect=True)
def test_gpu_removes_as_cpu(source, passages, tmp_path):
    job = tiny.job(source, passages, "layers", 40)
    one = prune(job, tmp_path / "cpu").removed
    other = prune(job.model_copy(update={"device": "cuda"}), tmp_path / "cuda").removed
    assert examine(tmp_path / "cuda").problems == []
    assert (one.unit, one.of) == (other.unit, other.of)
    for ours, theirs in zip(one.gone, other.gone, strict=True):
        same = {*read_numbers(ours)} & {*read_numbers(theirs)}
        assert len(same) >= 0.95 * len(read_numbers(ours))
    if one.distances is not None:
        assert other.distances == pytest.approx(one.distances, abs=1e-3)
