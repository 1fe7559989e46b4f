"""Whole jobs on tiny models against the brute force."""

from pathlib import Path

import pytest
import torch

from evaluator.checkpoints.manifests import PruneManifest, read_manifest
from pruning import run
from pruning.run import check, prune
from pruning.verify import examine
from tests.support import brute_force
from tests.support import pruning as tiny
from tests.support.pruning import job as config
from tests.support.pruning import magnitude
from tests.support.sweeps import refused


def sequences(source: Path, samples: int = 12) -> list[torch.Tensor]:
    return brute_force.sequences_of(source, tiny.lines(40)[:samples], tiny.LENGTH)


def assert_pruned(source: Path, out: Path, expected: dict[str, torch.Tensor]) -> None:
    """Every tensor of `out` is bit for bit the expected one, or the dense one."""
    dense, pruned = tiny.weights(source), tiny.weights(out)
    assert expected.keys() < dense.keys()
    assert pruned.keys() == dense.keys()
    for name, weight in dense.items():
        wanted = expected[name].to(weight.dtype) if name in expected else weight
        assert torch.equal(pruned[name].view(torch.uint8), wanted.view(torch.uint8)), (
            name
        )


HALF = [(name, None, torch.bfloat16) for name in (*tiny.ARCHITECTURES, *tiny.MORE)]
GROUPS = [(name, (2, 4), torch.bfloat16) for name in ("qwen3", "phi3", "qwen3_moe")]
OTHERS = [("llama", None, dtype) for dtype in (torch.float32, torch.float16)]


@pytest.mark.parametrize(("name", "n_of_m", "dtype"), HALF + GROUPS + OTHERS, ids=str)
def test_wanda_equals_brute_force(name, n_of_m, dtype, checkpoints, passages, tmp_path):
    source = checkpoints(name, dtype)
    fields = {"pattern": "2:4"} if n_of_m else {}
    manifest = prune(config(source, passages, **fields), tmp_path / "out")
    expected = brute_force.prune(
        source,
        sequences(source),
        brute_force.square_sums,
        lambda weight, norm_sq: weight.masked_fill(
            brute_force.wanda_mask(weight, norm_sq, 0.5, n_of_m), 0
        ),
    )
    assert_pruned(source, tmp_path / "out", expected)
    assert manifest.measured_sparsity == 0.5
    assert examine(tmp_path / "out").problems == []


SOLVED = [
    ("qwen3", None),
    ("qwen3", (2, 4)),
    ("phi3", None),
    ("phi3", (2, 4)),
    ("mixtral", None),
]


@pytest.mark.parametrize(("name", "n_of_m"), SOLVED)
def test_sparsegpt_equals_plain_float64(name, n_of_m, checkpoints, passages, tmp_path):
    source = checkpoints(name, torch.float32, num_hidden_layers=1)
    fields = {"pattern": "2:4"} if n_of_m else {}
    manifest = prune(
        config(source, passages, "sparsegpt", 40, **fields), tmp_path / "out"
    )
    expected = brute_force.prune(
        source,
        sequences(source, 40),
        lambda inputs: 2 * brute_force.second_moments(inputs),
        lambda weight, hessian: brute_force.plain_sparsegpt(
            weight, hessian, 128, 0.5, n_of_m
        )[0].float(),
    )
    pruned = tiny.weights(tmp_path / "out")
    for name, weight in expected.items():
        assert torch.equal(pruned[name] == 0, weight == 0), name
        torch.testing.assert_close(pruned[name], weight, rtol=2e-3, atol=2e-4)
        # no weight is minus zero
        assert not torch.signbit(pruned[name][weight == 0]).any()
    assert {matrix.solver_dtype for matrix in manifest.matrices} == {"float32"}
    assert examine(tmp_path / "out").problems == []


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_unreached_expert_uses_weights_alone(method, checkpoints, passages, tmp_path):
    source = checkpoints(
        "qwen3_moe",
        torch.float32,
        num_experts=24,
        num_hidden_layers=1,
        mlp_only_layers=[],
    )
    manifest = prune(config(source, passages, method, 1), tmp_path / "out")
    tokens = {m.name: m.tokens for m in manifest.matrices}
    dense, pruned = tiny.weights(source), tiny.weights(tmp_path / "out")
    unreached = [name for name, count in tokens.items() if count == 0]
    length = len(sequences(source, 1)[0][0])
    assert {name for name, count in tokens.items() if count is None} == {
        f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"
    }
    assert (
        sum(count for name, count in tokens.items() if name.endswith("up_proj.weight"))
        == 2 * length
    )
    assert 0 < len(unreached) < 3 * 24
    for name in unreached:
        size = dense[name].abs()
        if method == "wanda":
            mask = brute_force.sorted_mask(size, 0.5, None)
        else:  # compared over the rows of a block, and an identity for a Hessian updates nothing
            mask = brute_force.sorted_mask(size.view(1, -1), 0.5, None).view(size.shape)
        assert torch.equal(pruned[name], dense[name].masked_fill(mask, 0)), name
    assert {m.dead_columns for m in manifest.matrices if m.tokens == 0} == {None}


@pytest.mark.parametrize("group", ["matrix", "row"])
def test_magnitude_takes_exact_counts(group, checkpoints, tmp_path):
    source = checkpoints("mistral")
    manifest = prune(magnitude(source, sparsity=0.6, group=group), tmp_path / "out")
    expected = {}
    for name, weight in tiny.weights(source).items():
        if name in {matrix.name for matrix in manifest.matrices}:
            size = weight.float().abs()
            flat = size.view(1, -1) if group == "matrix" else size
            expected[name] = weight.masked_fill(
                brute_force.sorted_mask(flat, 0.6, None).view(weight.shape), 0
            )
    assert len(expected) == 21
    assert_pruned(source, tmp_path / "out", expected)
    assert manifest.calibration is None


def test_owl_keeps_the_mean_ratio(checkpoints, passages, tmp_path):
    source = checkpoints("llama")
    manifest = prune(
        config(source, passages, sparsity=0.6, allocation="owl"), tmp_path / "out"
    )
    assert len(set(manifest.layer_sparsity)) > 1
    assert sum(manifest.layer_sparsity) / 3 == pytest.approx(0.6)
    assert manifest.measured_sparsity == pytest.approx(0.6, abs=0.01)
    assert examine(tmp_path / "out").problems == []


@pytest.mark.parametrize("method", ["wanda", "magnitude", "sparsegpt"])
def test_ratio_zero_copies_files(method, checkpoints, passages, tmp_path):
    source = checkpoints("qwen3", max_shard_size="100KB")
    manifest = prune(config(source, passages, method, sparsity=0.0), tmp_path / "out")
    assert manifest.measured_sparsity == 0
    assert len(list(source.glob("*.safetensors"))) > 1
    for name in manifest.source_files:
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


def test_activations_on_disk_change_nothing(
    checkpoints, passages, tmp_path, monkeypatch
):
    source = checkpoints("mistral")
    prune(config(source, passages), tmp_path / "memory")
    monkeypatch.setattr(run, "_ACTIVATION_BYTES", 0)
    prune(config(source, passages), tmp_path / "disk")
    for file in (tmp_path / "memory").glob("*.safetensors"):
        assert (tmp_path / "disk" / file.name).read_bytes() == file.read_bytes()


def test_manifest_states_the_job(checkpoints, passages, tmp_path):
    out, steps = tmp_path / "out", []
    said = {"commit": "abc", "dirty": False}
    manifest = prune(
        config(checkpoints("qwen3"), passages),
        out,
        provenance=said,
        progress=lambda *step: steps.append(step),
    )
    assert read_manifest(out, PruneManifest) == manifest
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert manifest.provenance == said
    stated = len(manifest.matrices), manifest.dtype, manifest.compute_dtype
    assert stated == (21, "BF16", "float32")
    rows = [record.row for record in manifest.calibration.passages]
    assert rows == list(range(12))
    assert manifest.peak_memory_bytes > 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {*manifest.files}
    assert PruneManifest.FILE not in manifest.files


def test_finished_job_is_not_repeated(checkpoints, passages, tmp_path):
    source, out = checkpoints("qwen3"), tmp_path / "out"
    job = config(source, passages)
    first = prune(job, out)
    before = (out / PruneManifest.FILE).stat().st_mtime_ns
    assert prune(job, out) == first
    assert (out / PruneManifest.FILE).stat().st_mtime_ns == before
    others = {
        "field sparsity is 0.5 there, 0.7 here": config(source, passages, sparsity=0.7),
        "field source differs": config(checkpoints("llama"), passages),
    }
    for message, other in others.items():
        assert message in refused(check, other, out)
    passages.write_text("another text\n" * 40)
    assert "field calibration differs" in refused(prune, job, out)


def test_gemma3_text_tower_is_pruned(passages, tmp_path):
    source = tmp_path / "gemma3"
    tiny.build_gemma3(source)
    manifest = prune(config(source, passages), tmp_path / "out")
    assert len(manifest.matrices) == 21
    dense, pruned = tiny.weights(source), tiny.weights(tmp_path / "out")
    changed = {name for name in dense if not torch.equal(dense[name], pruned[name])}
    assert changed == {matrix.name for matrix in manifest.matrices}
    assert not any("vision" in name for name in changed)


def test_memory_does_not_grow(checkpoints, tmp_path):
    """Layers of 15 MiB in float32: what they need is given back after every five."""
    source = checkpoints(
        "llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=11
    )
    resident = []

    def progress(_done: int, _total: int) -> None:
        status = Path("/proc/self/status").read_text()
        resident.append(int(status.partition("RssAnon:")[2].split()[0]) / 1024)

    prune(magnitude(source), tmp_path / "out", progress=progress)
    assert len(resident) == 11
    assert min(resident[-5:]) - min(resident[:5]) < 15


def test_relative_job_runs_elsewhere(checkpoints, tmp_path, monkeypatch):
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    (here / "model").symlink_to(checkpoints("qwen3"))
    (here / "text.txt").write_text("\n".join(tiny.lines(8)))
    job = config(Path("model"), "text:text.txt", samples=8)
    monkeypatch.chdir(here)
    sent = job.absolute()
    monkeypatch.chdir(elsewhere)
    prune(sent, here / "out")
    monkeypatch.chdir(here)
    check(job, Path("out"))  # another job's checkpoint would be refused
    manifest = read_manifest(Path("out"), PruneManifest)
    assert manifest.config["calibration"]["source"] == "text:text.txt"
    assert manifest.calibration.files.keys() == {"text.txt"}
