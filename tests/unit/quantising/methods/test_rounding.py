"""Rounding to nearest: the layouts that vLLM reads, and the nearest of their values."""

import json

import pytest
import torch
from safetensors.torch import load_file

import quantising.schemes
from evaluator.checkpoints.info import inspect_checkpoint
from quantising.config import QuantiseConfig
from quantising.methods.rounding import ignored, rounded
from quantising.run import quantise
from quantising.schemes import preset
from tests.support.models import load_model
from tests.support.quantised import dequantised
from tests.support.sweeps import refused

GROUP = 16
# scheme -> (group size that divides the tiny model's rows, how records name it)
SCHEMES = {
    "FP8_DYNAMIC": (None, "FP8 (rtn, per channel)"),
    "FP8_BLOCK": (None, "FP8 (rtn, block 128x128)"),
    "W8A8": (None, "W8A8 (rtn, per channel)"),
    "W8A16": (GROUP, "W8A16 (rtn, group 16)"),
    "W4A16": (GROUP, "W4A16 (rtn, group 16)"),
    "W4A16_ASYM": (GROUP, "W4A16 (rtn, group 16, asymmetric)"),
}


def allowed(exact, scheme):
    """Half the distance of each weight to its neighbours: for int8, a step of a row."""
    if scheme.startswith("FP8"):
        return exact.abs() / 16 + exact.abs().max() / 448 / 256
    bits = 4 if "W4" in scheme else 8
    shared = exact if scheme == "W8A8" else exact.unflatten(1, (-1, GROUP))
    if scheme.endswith("ASYM"):
        steps = (shared.amax(-1).clamp(min=0) - shared.amin(-1).clamp(max=0)) / (
            2**bits - 1
        )
    else:
        steps = shared.abs().amax(-1) / ((2**bits - 1) / 2)
    steps = steps.reshape(len(exact), -1)
    steps = steps.repeat_interleave(exact.shape[1] // steps.shape[1], 1)
    # The scale is kept in bfloat16, and the largest value may lie beyond the last step.
    return steps * (1.02 if scheme.endswith("ASYM") else 0.52) + exact.abs() / 100


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_round_to_a_neighbour(source, tmp_path, scheme):
    group, label = SCHEMES[scheme]
    out = tmp_path / "out"
    manifest = quantise(
        QuantiseConfig(source=source, method="rtn", scheme=scheme, group_size=group),
        out,
    )
    info = inspect_checkpoint(out)
    assert (info.method, info.pattern, info.sparsity, info.calibration) == (
        "rtn",
        label,
        None,
        None,
    )
    made, dense = (
        load_file(out / "model.safetensors"),
        load_file(source / "model.safetensors"),
    )
    values_of = dequantised(out)
    matrices = [
        name.removesuffix(".weight") for name in dense if name.endswith("_proj.weight")
    ]
    assert (
        len(matrices)
        == 7 * json.loads((source / "config.json").read_text())["num_hidden_layers"]
    )
    for name in matrices:
        exact = dense[f"{name}.weight"].float()
        values = values_of(name)
        assert bool(((values - exact).abs() <= allowed(exact, scheme)).all()), name
        assert not torch.equal(values, exact)
    kept = [name for name in dense if not name.endswith("_proj.weight")]
    assert all(torch.equal(made[name], dense[name]) for name in kept)
    assert set(manifest.files) == {file.name for file in out.iterdir()} - {
        "quantise_manifest.json"
    }
    assert (out / "tokenizer.json").read_bytes() == (
        source / "tokenizer.json"
    ).read_bytes()


def test_ignored_matrices_stay(source, tmp_path):
    ignore = ("lm_head", "re:.*down_proj", "model.layers.0.self_attn.q_proj")
    quantise(
        QuantiseConfig(source=source, method="rtn", scheme="W8A8", ignore=ignore),
        tmp_path / "out",
    )
    made, dense = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "out", source)
    )
    stayed = {
        name
        for name in dense
        if name.endswith("_proj.weight") and made[name].dtype == dense[name].dtype
    }
    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    assert stayed == {
        "model.layers.0.self_attn.q_proj.weight",
        *(f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(layers)),
    }
    said = json.loads((tmp_path / "out" / "config.json").read_text())[
        "quantization_config"
    ]
    assert said["ignore"] == list(ignore)
    assert ignored("model.layers.0.mlp.up_proj", ["re:.*mlp"])
    assert not ignored("model.layers.0.mlp.up_proj", ["mlp", "up_proj"])
    cut, out = tmp_path / "cut", tmp_path / "of_shards"
    load_model(source).bfloat16().save_pretrained(cut, max_shard_size="50KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (cut / name).write_bytes((source / name).read_bytes())
    quantise(QuantiseConfig(source=cut, method="rtn", scheme="FP8_DYNAMIC"), out)
    whole = tmp_path / "whole"
    quantise(QuantiseConfig(source=source, method="rtn", scheme="FP8_DYNAMIC"), whole)
    assert (
        len(list(out.glob("*.safetensors"))) == len(list(cut.glob("*.safetensors"))) > 1
    )
    assert (
        inspect_checkpoint(out).weights_digest
        == inspect_checkpoint(whole).weights_digest
    )


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"scheme": "W4A16"}, "group_size 128 does not divide the 64 columns of "),
        ({"scheme": "W8A8", "ignore": ("re:.*",)}, "leaves no matrix to quantise"),
        ({"scheme": "W8A8", "ignore": ("lm_haed",)}, "no module of"),
    ],
)
def test_impossible_rounding_leaves_nothing(source, tmp_path, changes, part):
    assert part in refused(
        quantise,
        QuantiseConfig(source=source, method="rtn", **changes),
        tmp_path / "out",
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scheme", "largest", "dtype"),
    [
        ("W8A8", 1e-7, torch.float16),
        ("W8A8", 5e-6, torch.float16),
        ("FP8_DYNAMIC", 1e-5, torch.float16),
        ("FP8_BLOCK", 1e-5, torch.float16),
        ("W4A16", 1e-7, torch.float16),
        ("W4A16_ASYM", 1e-7, torch.float16),
        ("FP8_DYNAMIC", 1e-38, torch.bfloat16),
        ("W8A8", float("nan"), torch.float32),
    ],
)
def test_scales_that_the_dtype_lacks(scheme, largest, dtype):
    """They would be 0, or half as large again."""
    group = SCHEMES[scheme][0]
    weights = torch.linspace(-largest, largest, 1024).reshape(16, 64).to(dtype)
    how, layout = preset(scheme, group), quantising.schemes.SCHEMES[scheme].format
    assert "has no such number" in refused(rounded, weights, how, layout)
    for usual in (weights.nan_to_num() * 0, torch.eye(16, 64).to(dtype)):
        parts = rounded(usual, how, layout)
        assert all(bool(part.float().isfinite().all()) for part in parts.values())
