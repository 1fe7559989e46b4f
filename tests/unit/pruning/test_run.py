"""Whole jobs on tiny models against the brute force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from evaluator.core.errors import InputError
from pruning.config import CalibrationConfig, PruneConfig
from pruning.layers import repair
from pruning.output.manifest import MANIFEST_NAME, read_manifest
from pruning.run import check, prune
from pruning.verify import verify
from tests.support import brute_force
from tests.support import pruning as tiny

LENGTH = 32


def config(source: Path, passages: Path, method: str = "wanda", samples: int = 12, **fields) -> PruneConfig:
    if "pattern" not in fields:
        fields.setdefault("sparsity", 0.5)
    fields.setdefault(
        "calibration", CalibrationConfig(source=f"text:{passages}", samples=samples, sequence_length=LENGTH)
    )
    return PruneConfig(source=source, method=method, device="cpu", **fields)


def sequences(source: Path, samples: int = 12) -> list[torch.Tensor]:
    return brute_force.sequences_of(source, tiny.lines(40)[:samples], LENGTH)


def assert_pruned(source: Path, out: Path, expected: dict[str, torch.Tensor]) -> None:
    """Every tensor of `out` is bit for bit the expected one, or the dense one."""
    dense, pruned = tiny.weights(source), tiny.weights(out)
    assert expected.keys() < dense.keys()
    assert pruned.keys() == dense.keys()
    for name, weight in dense.items():
        wanted = expected[name].to(weight.dtype) if name in expected else weight
        assert torch.equal(pruned[name].view(torch.uint8), wanted.view(torch.uint8)), name


HALF = [(name, 0.5) for name in (*tiny.ARCHITECTURES, *tiny.MORE)]
GROUPS = [(name, (2, 4)) for name in (*tiny.ARCHITECTURES, "qwen3_moe")]


@pytest.mark.parametrize(("name", "pattern"), HALF + GROUPS, ids=str)
def test_wanda_equals_the_brute_force_bit_for_bit(name, pattern, checkpoints, passages, tmp_path):
    source = checkpoints(name)
    n_of_m = pattern if isinstance(pattern, tuple) else None
    fields = {"pattern": "2:4"} if n_of_m else {"sparsity": pattern}
    manifest = prune(config(source, passages, **fields), tmp_path / "out")
    expected = brute_force.prune(
        source,
        sequences(source),
        brute_force.square_sums,
        lambda weight, norm_sq: weight.masked_fill(brute_force.wanda_mask(weight, norm_sq, 0.5, n_of_m), 0),
    )
    assert_pruned(source, tmp_path / "out", expected)
    assert manifest.measured_sparsity == 0.5
    assert verify(tmp_path / "out") == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_are_kept(dtype, checkpoints, passages, tmp_path):
    source = checkpoints("llama", dtype)
    prune(config(source, passages, sparsity=0.3), tmp_path / "out")
    expected = brute_force.prune(
        source,
        sequences(source),
        brute_force.square_sums,
        lambda weight, norm_sq: weight.masked_fill(brute_force.wanda_mask(weight, norm_sq, 0.3, None), 0),
    )
    assert_pruned(source, tmp_path / "out", expected)


@pytest.mark.parametrize(
    ("name", "n_of_m"), [("qwen3", None), ("qwen3", (2, 4)), ("phi3", None), ("phi3", (2, 4)), ("mixtral", None)]
)
def test_sparsegpt_equals_the_plain_algorithm_in_float64(name, n_of_m, checkpoints, passages, tmp_path):
    source = checkpoints(name, torch.float32, num_hidden_layers=1)
    manifest = prune(
        config(source, passages, "sparsegpt", 40, **({"pattern": "2:4"} if n_of_m else {})), tmp_path / "out"
    )
    expected = brute_force.prune(
        source,
        sequences(source, 40),
        lambda inputs: 2 * brute_force.second_moments(inputs),
        lambda weight, hessian: brute_force.plain_sparsegpt(weight, hessian, 128, 0.5, n_of_m)[0].float(),
    )
    pruned = tiny.weights(tmp_path / "out")
    for name, weight in expected.items():
        assert torch.equal(pruned[name] == 0, weight == 0), name
        torch.testing.assert_close(pruned[name], weight, rtol=2e-3, atol=2e-4)
    assert {matrix.solver_dtype for matrix in manifest.matrices} == {"float32"}
    assert verify(tmp_path / "out") == []


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_an_expert_that_no_token_reached_is_judged_by_its_weights_alone(method, checkpoints, passages, tmp_path):
    source = checkpoints("qwen3_moe", torch.float32, num_experts=24, num_hidden_layers=1, mlp_only_layers=[])
    manifest = prune(config(source, passages, method, 1), tmp_path / "out")
    tokens = {m.name: m.tokens for m in manifest.matrices}
    dense, pruned = tiny.weights(source), tiny.weights(tmp_path / "out")
    unreached = [name for name, count in tokens.items() if count == 0]
    length = len(sequences(source, 1)[0][0])
    assert {name for name, count in tokens.items() if count is None} == {
        f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkvo"
    }
    assert sum(count for name, count in tokens.items() if name.endswith("up_proj.weight")) == 2 * length
    assert 0 < len(unreached) < 3 * 24
    for name in unreached:
        size = dense[name].abs()
        if method == "wanda":
            mask = brute_force.sorted_mask(size, 0.5, None)
        else:  # compared over the rows of a block, and an identity for a Hessian updates nothing
            mask = brute_force.sorted_mask(size.view(1, -1), 0.5, None).view(size.shape)
        assert torch.equal(pruned[name], dense[name].masked_fill(mask, 0)), name
    assert {m.dead_columns for m in manifest.matrices if m.tokens == 0} == {None}


def test_later_layers_see_what_sparsegpt_wrote(checkpoints, passages, tmp_path):
    """With bfloat16 weights the second layer's inputs come from the rounded first layer."""
    source = checkpoints("qwen3", num_hidden_layers=2)
    prune(config(source, passages, "sparsegpt", 40), tmp_path / "out")
    written = tiny.weights(tmp_path / "out")
    halfway = tiny.weights(source) | {k: v for k, v in written.items() if ".layers.0." in k}
    import shutil

    from safetensors.torch import save_file

    shutil.copytree(source, tmp_path / "halfway")
    save_file(halfway, tmp_path / "halfway" / "model.safetensors", {"format": "pt"})
    names = iter(range(2))

    def apply(weight: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
        return weight if next(layer_of) == 0 else brute_force.plain_sparsegpt(weight, hessian, 128, 0.5)[0].float()

    layer_of = (index for index in names for _ in range(7))
    expected = brute_force.prune(
        tmp_path / "halfway", sequences(source, 40), lambda inputs: 2 * brute_force.second_moments(inputs), apply
    )
    for name, weight in expected.items():
        if ".layers.1." in name:
            assert torch.equal(written[name] == 0, weight == 0), name


@pytest.mark.parametrize("group", ["matrix", "row"])
def test_magnitude_takes_exact_counts(group, checkpoints, tmp_path):
    source = checkpoints("mistral")
    manifest = prune(
        PruneConfig(source=source, method="magnitude", sparsity=0.6, group=group, device="cpu"), tmp_path / "out"
    )
    expected = {}
    for name, weight in tiny.weights(source).items():
        if name in {matrix.name for matrix in manifest.matrices}:
            size = weight.float().abs()
            flat = size.view(1, -1) if group == "matrix" else size
            expected[name] = weight.masked_fill(brute_force.sorted_mask(flat, 0.6, None).view(weight.shape), 0)
    assert len(expected) == 21
    assert_pruned(source, tmp_path / "out", expected)
    assert manifest.calibration is None


def test_ria_equals_its_formula(checkpoints, passages, tmp_path):
    source = checkpoints("llama", num_hidden_layers=1)
    prune(config(source, passages, "ria", group="row"), tmp_path / "out")

    def apply(weight: torch.Tensor, norm_sq: torch.Tensor) -> torch.Tensor:
        size = weight.abs()
        relative = size / size.sum(dim=0, keepdim=True) + size / size.sum(dim=1, keepdim=True)
        return weight.masked_fill(brute_force.sorted_mask(relative * norm_sq.sqrt() ** 0.5, 0.5, None), 0)

    expected = brute_force.prune(source, sequences(source), brute_force.square_sums, apply)
    assert_pruned(source, tmp_path / "out", expected)


def test_owl_gives_layers_ratios_whose_mean_is_what_was_asked(checkpoints, passages, tmp_path):
    source = checkpoints("llama")
    manifest = prune(config(source, passages, sparsity=0.6, allocation="owl"), tmp_path / "out")
    assert len(set(manifest.layer_sparsity)) > 1
    assert sum(manifest.layer_sparsity) / 3 == pytest.approx(0.6)
    assert max(manifest.layer_sparsity) - min(manifest.layer_sparsity) == pytest.approx(0.16)
    assert manifest.measured_sparsity == pytest.approx(0.6, abs=0.01)
    assert verify(tmp_path / "out") == []


def test_a_repair_keeps_the_masks_and_fits_the_rest_layer_by_layer(checkpoints, passages, tmp_path, monkeypatch):
    """Masks of the second layer come from what the repaired first layer gives."""
    monkeypatch.setattr(repair, "TOLERANCE", 1e-5)  # close enough to the exact solution for it to be compared
    source = checkpoints("qwen3", torch.float32, num_hidden_layers=2)
    manifest = prune(config(source, passages, repair="least_squares"), tmp_path / "out")

    def apply(weight: torch.Tensor, statistic: torch.Tensor) -> torch.Tensor:
        """The first row is the inputs' square sums, the others their second moments."""
        mask = brute_force.wanda_mask(weight, statistic[0].float(), 0.5, None)
        moments, dense = statistic[1:], weight.double()
        damped = moments + 0.01 * moments.diagonal().mean() * torch.eye(len(moments))
        found = torch.zeros_like(dense)
        for row, kept in enumerate(~mask):
            found[row, kept] = torch.linalg.solve(damped[kept][:, kept], damped[kept] @ dense[row])
        return found.float()

    expected = brute_force.prune(
        source,
        sequences(source),
        lambda inputs: torch.cat([brute_force.square_sums(inputs)[None], brute_force.second_moments(inputs)]),
        apply,
    )
    repaired = tiny.weights(tmp_path / "out")
    for name, weight in expected.items():
        assert torch.equal(repaired[name] == 0, weight == 0), name
        torch.testing.assert_close(repaired[name], weight, rtol=1e-2, atol=2e-3)
    assert manifest.repair == manifest.config["repair"] == "least_squares"
    for matrix in manifest.matrices:
        assert matrix.pruned_error is not None
        assert matrix.repaired_error is not None
        assert matrix.repaired_error < matrix.pruned_error
    assert verify(tmp_path / "out") == []


@pytest.mark.parametrize("method", ["magnitude", "sparsegpt"])
def test_a_repair_leaves_the_first_layers_masks_alone_and_is_another_job(method, checkpoints, passages, tmp_path):
    source = checkpoints("llama")
    plain, repaired = (
        config(source, passages, method, pattern="2:4", repair=each) for each in ("none", "least_squares")
    )
    made = {each: prune(each, tmp_path / each.repair) for each in (plain, repaired)}
    without, fitted = (tiny.weights(tmp_path / each.repair) for each in (plain, repaired))
    for matrix in made[repaired].matrices:
        if ".layers.0." in matrix.name:
            assert torch.equal(without[matrix.name] == 0, fitted[matrix.name] == 0), matrix.name
    assert any(not torch.equal(without[name], fitted[name]) for name in without)
    assert verify(tmp_path / "least_squares") == []
    assert "repair" not in json.loads((tmp_path / "none" / MANIFEST_NAME).read_text())["config"]
    for job, place in ((plain, "least_squares"), (repaired, "none")):
        with pytest.raises(InputError, match="field repair is "):
            check(job, tmp_path / place)


@pytest.mark.parametrize("method", ["wanda", "magnitude", "sparsegpt"])
def test_ratio_zero_leaves_every_file_as_it_was(method, checkpoints, passages, tmp_path):
    source = checkpoints("qwen3", max_shard_size="100KB")
    manifest = prune(config(source, passages, method, sparsity=0.0), tmp_path / "out")
    assert manifest.measured_sparsity == 0
    shards = sorted(source.glob("*.safetensors"))
    assert len(shards) > 1
    for file in [*shards, source / "config.json", source / "tokenizer.json", source / "model.safetensors.index.json"]:
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_shards_do_not_change_the_result(checkpoints, passages, tmp_path):
    whole, cut = checkpoints("qwen3"), checkpoints("qwen3", max_shard_size="60KB")
    prune(config(whole, passages), tmp_path / "whole")
    prune(config(cut, passages), tmp_path / "cut")
    first, second = tiny.weights(tmp_path / "whole"), tiny.weights(tmp_path / "cut")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_activations_on_disk_give_the_same_bytes(checkpoints, passages, tmp_path):
    source = checkpoints("mistral")
    prune(config(source, passages), tmp_path / "memory")
    prune(config(source, passages), tmp_path / "disk", activation_bytes=0)
    for file in (tmp_path / "memory").glob("*.safetensors"):
        assert (tmp_path / "disk" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("method", ["wanda", "sparsegpt"])
def test_no_weight_is_minus_zero(method, checkpoints, passages, tmp_path):
    prune(config(checkpoints("qwen3"), passages, method), tmp_path / "out")
    for name, weight in tiny.weights(tmp_path / "out").items():
        assert not (torch.signbit(weight) & (weight == 0)).any(), name


def test_fused_and_split_projections_give_the_same_masks(checkpoints, passages, tmp_path):
    """A Phi-3 cut into a Llama: the same rows, in matrices of their own."""
    from safetensors.torch import save_file

    fused = checkpoints("phi3", sliding_window=None)
    split = tmp_path / "split"
    tiny.build("llama", split)
    tensors = {}
    for name, weight in tiny.weights(fused).items():
        if "qkv_proj" in name:
            for part, rows in zip("qkv", weight.split([64, 32, 32]), strict=True):
                tensors[name.replace("qkv_proj", f"{part}_proj")] = rows.clone()
        elif "gate_up_proj" in name:
            for part, rows in zip(("gate", "up"), weight.chunk(2), strict=True):
                tensors[name.replace("gate_up_proj", f"{part}_proj")] = rows.clone()
        else:
            tensors[name] = weight
    save_file(tensors, split / "model.safetensors", {"format": "pt"})
    settings = json.loads((split / "config.json").read_text())
    theirs = json.loads((fused / "config.json").read_text())
    settings |= {key: theirs[key] for key in ("rms_norm_eps", "rope_parameters")}
    (split / "config.json").write_text(json.dumps(settings))
    for fields in ({"sparsity": 0.5}, {"pattern": "2:4"}):
        label = "pattern" if "pattern" in fields else "ratio"
        prune(config(fused, passages, **fields), tmp_path / f"fused-{label}")
        prune(config(split, passages, **fields), tmp_path / f"split-{label}")
        whole, parts = tiny.weights(tmp_path / f"fused-{label}"), tiny.weights(tmp_path / f"split-{label}")
        for index in range(3):
            layer = f"model.layers.{index}"
            qkv = torch.cat([parts[f"{layer}.self_attn.{part}_proj.weight"] for part in "qkv"])
            gate_up = torch.cat([parts[f"{layer}.mlp.{part}_proj.weight"] for part in ("gate", "up")])
            assert torch.equal(whole[f"{layer}.self_attn.qkv_proj.weight"], qkv)
            assert torch.equal(whole[f"{layer}.mlp.gate_up_proj.weight"], gate_up)


def test_a_finished_job_is_not_done_again(checkpoints, passages, tmp_path):
    source = checkpoints("qwen3")
    first = prune(config(source, passages), tmp_path / "out")
    before = (tmp_path / "out" / MANIFEST_NAME).stat().st_mtime_ns
    assert prune(config(source, passages), tmp_path / "out") == first
    assert (tmp_path / "out" / MANIFEST_NAME).stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"field sparsity is 0\.\d+ there, 0\.7 here"):
        check(config(source, passages, sparsity=0.7), tmp_path / "out")
    with pytest.raises(InputError, match="field source differs"):
        check(config(checkpoints("llama"), passages), tmp_path / "out")
    passages.write_text("another text\n" * 40)
    with pytest.raises(InputError, match="field calibration differs"):
        prune(config(source, passages), tmp_path / "out")


def test_the_manifest_says_how_it_was_made(checkpoints, passages, tmp_path):
    steps = []
    prune(
        config(checkpoints("qwen3"), passages),
        tmp_path / "out",
        provenance={"commit": "abc", "dirty": False},
        progress=lambda done, total: steps.append((done, total)),
    )
    manifest = read_manifest(tmp_path / "out")
    assert manifest is not None
    assert steps == [(1, 3), (2, 3), (3, 3)]
    assert manifest.provenance == {"commit": "abc", "dirty": False}
    assert len(manifest.matrices) == 21
    assert manifest.dtype == "BF16"
    assert manifest.compute_dtype == "float32"
    assert manifest.calibration is not None
    assert [record.row for record in manifest.calibration.passages] == list(range(12))
    assert manifest.peak_memory_bytes > 0
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= manifest.files.keys()
    assert MANIFEST_NAME not in manifest.files


def test_named_sources_come_from_the_caller(checkpoints, tmp_path):
    asked = []

    def gazetteer(samples: int, seed: int):
        asked.append((samples, seed))
        yield from tiny.lines(samples, seed)

    calibration = CalibrationConfig(source="gazetteer", samples=8, sequence_length=LENGTH)
    job = PruneConfig(source=checkpoints("qwen3"), method="wanda", sparsity=0.5, calibration=calibration, seed=3)
    manifest = prune(job, tmp_path / "out", sources={"gazetteer": gazetteer})
    assert set(asked) == {(8, 3)}
    assert manifest.calibration is not None
    assert manifest.calibration.samples == 8


def test_the_text_tower_of_a_gemma_3_is_pruned_and_nothing_else(passages, tmp_path):
    source = tmp_path / "gemma3"
    tiny.build_gemma3(source)
    manifest = prune(config(source, passages), tmp_path / "out")
    assert len(manifest.matrices) == 21
    dense, pruned = tiny.weights(source), tiny.weights(tmp_path / "out")
    changed = {name for name in dense if not torch.equal(dense[name], pruned[name])}
    assert changed == {matrix.name for matrix in manifest.matrices}
    assert not any("vision" in name for name in changed)


def test_resident_memory_does_not_grow_with_the_layers(checkpoints, tmp_path):
    """Ten layers of 15 MiB in float32: what one needs is given back before the next."""
    source = checkpoints("llama", hidden_size=512, intermediate_size=2048, num_hidden_layers=10)
    resident = []

    def progress(_done: int, _total: int) -> None:
        status = Path("/proc/self/status").read_text().splitlines()
        resident.append(next(int(line.split()[1]) / 1024 for line in status if line.startswith("RssAnon")))

    prune(
        PruneConfig(source=source, method="magnitude", sparsity=0.5, device="cpu"), tmp_path / "out", progress=progress
    )
    assert len(resident) == 10
    assert resident[-1] - resident[0] < 15
