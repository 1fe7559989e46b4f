"""A checkpoint's tensors are those of its model: neither more nor fewer, under its
names, as its files describe."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.fit import check_fit
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.quantisation import overrides
from evaluator.checkpoints.tensors import SINGLE, read_tensors
from tests.support.checkpoint_files import only_error
from tests.support.models import save_tiny_model
from tests.support.quantised import LAYOUTS, WEIGHTS, quantise
from tests.support.served import BASE

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1, "head_dim": 8,
    "num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 16, "num_experts_per_tok": 2,
}  # fmt: skip
KINDS = ("gemma2", "llama", "mamba", "mixtral", "opt", "phi3", "qwen3_moe", "gpt_neox")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The same model, with an output head of its own and without: tied."""
    root = tmp_path_factory.mktemp("tiny")
    return {
        kind: save_tiny_model(root / kind, kind) for kind in ("qwen3", "qwen3_untied")
    }


def change(directory, out, weights=None, **fields):
    """A copy with other tensors (None: without it) and fields of config.json."""
    copy = shutil.copytree(directory, out)
    held = load_file(copy / SINGLE) | (weights or {})
    save_file(
        {name: tensor for name, tensor in held.items() if tensor is not None},
        copy / SINGLE,
    )
    config = json.loads((copy / "config.json").read_text()) | fields
    (copy / "config.json").write_text(json.dumps(config))
    return copy


@pytest.mark.parametrize("kind", KINDS)
def test_architectures_pass_misfits_do_not(tmp_path, kind):
    """What transformers writes fits. One tensor more or less is refused by its name
    in the files."""
    with torch.device("cpu"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES))
    model.save_pretrained(tmp_path / "good")
    assert inspect_checkpoint(tmp_path / "good").notes == ()
    name = next(
        each.name for each in read_tensors(tmp_path / "good") if ".1." in each.name
    )
    assert f"'{name}'" in only_error(
        change(tmp_path / "good", tmp_path / "less", {name: None})
    )
    layer = {name.replace(".1.", ".7."): torch.ones(1)}
    assert f"'{next(iter(layer))}'" in only_error(
        change(tmp_path / "good", tmp_path / "layer", layer)
    )


@pytest.mark.parametrize(
    ("weights", "part"),
    [
        (
            {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)},
            "no tensor 'model.layers.0.self_attn.q_proj.bias'",
        ),
        ({"model.layers.0.q.lora_B.weight": torch.ones(2, 2)}, "merge the adapter"),
        (
            {"model.norm.weight": torch.ones(64).to(torch.float8_e4m3fn)},
            "is F8_E4M3, and no file describes",
        ),
        (
            {"model.norm.weight": torch.ones(65)},
            "'model.norm.weight' of shape [64], but the files have [65]",
        ),
        (
            {"lm_head.weight": torch.ones(384, 64)},
            "but they differ: set tie_word_embeddings to false",
        ),
    ],
)
def test_misfits_of_one_tensor(tmp_path, tiny, weights, part):
    assert part in only_error(change(tiny["qwen3"], tmp_path / "bad", weights))


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"vocab_size": 7}, "of shape [7, 64], but the files have [384, 64]"),
        (
            {"num_hidden_layers": 1, "layer_types": None},
            "has no tensor 'model.layers.1",
        ),
        (
            {"num_hidden_layers": 3, "layer_types": None},
            "the files lack tensor 'model.layers.2",
        ),
        ({"hidden_size": "8"}, "not a qwen3 configuration"),
    ],
)
def test_sizes_of_config_are_compared(tmp_path, tiny, fields, part):
    assert part in only_error(change(tiny["qwen3"], tmp_path / "bad", **fields))


WRAPPED = "save the model without its wrapper"


@pytest.mark.parametrize(
    ("more", "less", "part"),
    [
        ("_orig_mod.", "", WRAPPED),
        ("base_model.model.", "", WRAPPED),
        ("module.", "", WRAPPED),
        ("", "model.", "lacks the prefix 'model.'"),
    ],
)
def test_other_prefixes_are_refused(tmp_path, tiny, more, less, part):
    held = load_file(tiny["qwen3"] / SINGLE)
    named = {more + name.removeprefix(less): tensor for name, tensor in held.items()}
    copy = change(tiny["qwen3"], tmp_path / "w", dict.fromkeys(held) | named)
    assert part in only_error(copy)


def test_spare_parts_are_notes(tmp_path, tiny):
    """Heads for more tokens, a vision tower, old buffers and biases of zeros cannot
    matter to text."""
    parts = {
        "mtp.fc.weight": torch.ones(2, 2),
        "visual.patch_embed.weight": torch.ones(2, 2),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.0.self_attn.q_proj.bias": torch.zeros(64),
    }
    info = inspect_checkpoint(change(tiny["qwen3_untied"], tmp_path / "spare", parts))
    assert info.notes == (
        "not used for text: tensor 'model.layers.0.self_attn.q_proj.bias' and 3 more",
    )


def test_next_token_layer_is_spare(tmp_path):
    """DeepSeek's kind: the layer after the last one; a layer without such a part is
    refused."""
    AutoModelForCausalLM.from_config(
        AutoConfig.for_model("granite", **SIZES)
    ).save_pretrained(tmp_path / "good")
    layer = {
        "model.layers.2.eh_proj.weight": torch.ones(2, 2),
        "model.layers.2.mlp.weight": torch.ones(2, 2),
    }
    info = inspect_checkpoint(change(tmp_path / "good", tmp_path / "next", layer))
    assert info.notes == (
        "not used for text: tensor 'model.layers.2.eh_proj.weight' and 1 more",
    )
    del layer["model.layers.2.eh_proj.weight"]
    assert "no tensor 'model.layers.2.mlp.weight'" in only_error(
        change(tmp_path / "good", tmp_path / "bad", layer)
    )


SIDES = {
    "hf_quant_config.json": (
        {"quantization": {"quant_algo": "FP8"}},
        "FP8 (by hf_quant_config.json)",
    ),
    "quantize_config.json": (
        {"bits": 4, "group_size": 128, "desc_act": False},
        "W4A16 (gptq, group 128, by quantize_config.json)",
    ),
    "quant_config.json": (
        {"w_bit": 4, "q_group_size": 64, "zero_point": True},
        "W4A16 (awq, group 64, asymmetric, by quant_config.json)",
    ),
}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_scales_of_one_matrix_are_missing(tmp_path, layout):
    """vLLM would multiply by what its memory held."""
    whole = quantise(BASE, tmp_path / "whole", layout)
    assert check_fit(Checkpoint(whole)).unused == ()
    tensors = load_file(whole / WEIGHTS)
    lost = [
        name
        for name in tensors
        if "layers.0.self_attn.o_proj" in name
        and name.endswith(("weight_scale", "scales", "scale_inv"))
    ]
    assert lost
    for name in lost:
        del tensors[name]
    save_file(tensors, whole / WEIGHTS, metadata={"format": "pt"})
    told = only_error(whole)
    assert "layers.0.self_attn.o_proj' is quantised" in told
    assert "its scales are missing" in told


@pytest.mark.parametrize(
    ("ignore", "is_named"),
    [
        (["lm_head"], False),
        (["lm_head", "model.layers.0.self_attn.o_proj"], True),
        (["re:.*layers\\.0\\..*"], True),
        (["re:.*layers\\.1\\..*"], False),
        (["*layers.0.*"], True),
        (["o_proj"], True),
    ],
)
@pytest.mark.parametrize("layout", ["w8a8", "fp8", "w4a16"])
def test_plain_matrix_among_quantised_ones(tmp_path, layout, ignore, is_named):
    """vLLM would round it, with a scale that no file has."""
    config = {"ignore": ignore}
    directory = quantise(BASE, tmp_path / "one", layout, config=config)
    tensors, dense = load_file(directory / WEIGHTS), load_file(BASE / WEIGHTS)
    name = "model.layers.0.self_attn.o_proj"
    held = {key: part for key, part in tensors.items() if not key.startswith(name)}
    held[f"{name}.weight"] = dense[f"{name}.weight"]
    save_file(held, directory / WEIGHTS, metadata={"format": "pt"})
    if is_named:
        check_fit(Checkpoint(directory))
    else:
        assert f"{name!r} is plain, the same matrix of other" in only_error(directory)


@pytest.mark.parametrize("name", SIDES)
def test_quantisations_beside_config_json_count(tmp_path, tiny, name):
    copy = shutil.copytree(tiny["qwen3"], tmp_path / "copy")
    said, label = SIDES[name]
    (copy / name).write_text(json.dumps(said))
    found = Checkpoint(copy).quantisation
    assert found is not None
    assert found.label == label
    assert f"{label} is described, but no tensor is quantised" in only_error(copy)
    passed_on = overrides(Checkpoint(copy).config)["quantization_config"]
    assert passed_on.items() >= said.items()


def test_infinity_in_config_json_loads(tmp_path):
    config = AutoConfig.for_model(
        "mamba2", **SIZES, num_heads=8, expand=2, state_size=8, n_groups=1
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    assert Checkpoint(tmp_path).settings["time_step_limit"][1] == float("inf")
