"""What a quantization_config says, in the layouts that tools write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluator.checkpoints.quantisation import Quantisation, read_quantisation
from evaluator.core.errors import InputError
from tests.support.quantised import compressed_tensors, floats, integers

TOKEN = integers(8, "token", dynamic=True)
SAID: dict[str, tuple[dict[str, Any], str]] = {
    "w4a16": (compressed_tensors("pack-quantized", integers(4, "group", group=128)), "W4A16 (group 128)"),
    "asymmetric": (
        compressed_tensors("pack-quantized", integers(4, "group", group=64, symmetric=False)),
        "W4A16 (group 64, asymmetric)",
    ),
    "static": (
        compressed_tensors("pack-quantized", integers(4, "channel", actorder="static")),
        "W4A16 (per channel, static act order)",
    ),
    "weight": (
        compressed_tensors("pack-quantized", integers(4, "group", group=128, actorder="weight")),
        "W4A16 (group 128, static act order)",
    ),
    "w8a16": (compressed_tensors("pack-quantized", integers(8, "channel")), "W8A16 (per channel)"),
    "w8a8": (compressed_tensors("int-quantized", integers(8, "channel"), TOKEN), "W8A8 (per channel)"),
    "w4a8": (compressed_tensors("int-quantized", integers(4, "group", group=128), TOKEN), "W4A8 (group 128)"),
    "fp8": (
        compressed_tensors("float-quantized", floats("channel"), floats("token", dynamic=True)),
        "FP8 (per channel)",
    ),
    "fp8 block": (
        compressed_tensors(
            "float-quantized",
            floats("block", block_structure=[128, 128]),
            floats("group", dynamic=True, group_size=128),
        ),
        "FP8 (block 128x128)",
    ),
    "fp8 weights": (compressed_tensors("float-quantized", floats("tensor")), "FP8 W8A16 (per tensor)"),
    "nvfp4": (
        compressed_tensors(
            "nvfp4-pack-quantized",
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
            {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"},
        ),
        "NVFP4 (group 16)",
    ),
    "mxfp4": (
        compressed_tensors(
            "mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
        ),
        "MXFP4 W4A16 (group 32)",
    ),
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "dataset": "c4"},
        "W4A16 (gptq, group 128)",
    ),
    "gptq act order": (
        {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True, "sym": True},
        "W8A16 (gptq, per channel, act order)",
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
        "W4A16 (awq, group 64, asymmetric)",
    ),
    "awq, as its first files said it": (
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "zero_point": False},
        "W4A16 (awq, group 128)",
    ),
    "auto-round": (
        {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True, "data_type": "int"},
        "W4A16 (autoround, group 128)",
    ),
    "fp8 of its own": (
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "FP8 (block 128x128)",
    ),
    "fp8 per tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, "FP8"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "NVFP4 (group 16)"),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        "NF4 (rtn)",
    ),
    "unknown": ({"quant_method": "quark", "global_quant_config": {}}, "QUARK"),
}


def read(said: object, directory: Path = Path("model"), key: str = "quantization_config") -> Quantisation | None:
    return read_quantisation(directory, {"model_type": "qwen3", key: said})


@pytest.mark.parametrize("name", SAID)
def test_every_layout_is_named_in_the_words_of_the_field(name: str) -> None:
    said, label = SAID[name]
    found = read(said)
    assert found is not None
    assert found.label == label
    assert found.library == said["quant_method"]


def test_a_dense_checkpoint_has_no_scheme() -> None:
    assert read_quantisation(Path("model"), {"model_type": "qwen3"}) is None
    assert read(None) is None


def test_the_old_name_of_the_field_is_read_too() -> None:
    said = compressed_tensors("int-quantized", integers(8, "channel"), TOKEN)
    del said["quant_method"]
    found = read(said, key="compression_config")
    assert found is not None
    assert (found.library, found.scheme) == ("compressed-tensors", "W8A8")


def test_calibration_is_a_data_set_that_is_named_and_no_list_of_texts() -> None:
    said, _ = SAID["gptq"]
    named, listed = read(said), read({**said, "dataset": ["a text", "another one"]})
    assert named is not None
    assert listed is not None
    assert (named.calibration, listed.calibration) == ("c4", None)


@pytest.mark.parametrize(
    ("recipe", "algorithm"),
    [
        ("default_stage:\n  default_modifiers:\n    GPTQModifier:\n      scheme: W4A16\n", "gptq"),
        ("quant_stage:\n  quant_modifiers:\n    SmoothQuantModifier: {}\n    GPTQModifier: {}\n", "smoothquant + gptq"),
        ("quant_stage:\n  quant_modifiers:\n    AWQModifier: {}\n    QuantizationModifier: {}\n", "awq"),
        ("    QuantizationModifier:\n      targets: [Linear]\n", "rtn"),
        ("    MyOwnModifier:\n      targets: [Linear]\n", None),
        ("", None),
    ],
)
def test_llm_compressors_recipe_names_the_algorithm(tmp_path: Path, recipe: str, algorithm: str | None) -> None:
    (tmp_path / "recipe.yaml").write_text(recipe)
    found = read(SAID["w4a16"][0], tmp_path)
    assert found is not None
    assert found.algorithm == algorithm
    assert found.label == (f"W4A16 ({algorithm}, group 128)" if algorithm else "W4A16 (group 128)")


def test_two_schemes_in_one_checkpoint_are_both_named() -> None:
    said, _ = SAID["w4a16"]
    other = SAID["fp8"][0]["config_groups"]["group_0"]
    both = read({**said, "config_groups": {**said["config_groups"], "group_1": other}})
    assert both is not None
    assert (both.scheme, both.per) == ("W4A16 and FP8", None)


@pytest.mark.parametrize(
    ("sparsity", "format"),
    [
        ({"format": "dense", "targets": ["Linear"], "sparsity_structure": "2:4"}, "dense"),
        ({"format": "sparse-24-bitmask", "targets": ["Linear"]}, "sparse-24-bitmask"),
        ({"format": "dense", "targets": []}, None),
        (None, None),
    ],
)
def test_a_sparsity_config_counts_where_it_names_layers(sparsity: object, format: str | None) -> None:
    found = read({**SAID["w4a16"][0], "sparsity_config": sparsity})
    assert found is not None
    assert found.sparse_format == format


@pytest.mark.parametrize(
    ("said", "part"),
    [
        ("int8", "config.json: quantization_config must be an object"),
        ({}, "field 'quant_method' is missing"),
        ({"quant_method": 4}, "field 'quant_method' must be a string, not 4"),
        ({"quant_method": "gptq", "bits": "four"}, "field 'bits' is 'four', not a number of bits"),
        ({"quant_method": "awq"}, "field 'w_bit' is None"),
        ({"quant_method": "compressed-tensors"}, "field 'config_groups' is missing"),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, "'config_groups' quantises no weights"),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 99}}}}, "field 'num_bits' is 99"),
        ({"config_groups": {"group_0": []}}, "config_groups.group_0 must be an object"),
        ({"quant_method": "modelopt"}, "field 'quant_algo' is missing"),
    ],
)
def test_a_configuration_that_cannot_be_understood_is_one_line(said: object, part: str) -> None:
    with pytest.raises(InputError) as caught:
        read(said)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(Path("model") / "config.json") in str(caught.value)
