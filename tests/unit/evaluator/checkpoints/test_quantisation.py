"""What a quantization_config says, in the layouts that tools write, and what is left
out of it to be served."""

import copy
from pathlib import Path
from typing import Any

import pytest

from evaluator.checkpoints.quantisation import (
    Quantisation,
    overrides,
    read_quantisation,
)
from tests.support.checkpoint_files import CONFIG
from tests.support.quantised import compressed_tensors, floats, integers
from tests.support.sweeps import refused, rows


def packed(bits: int, strategy: str, **more: Any) -> dict[str, Any]:
    return compressed_tensors("pack-quantized", integers(bits, strategy, **more))


def other(method: str, **fields: Any) -> dict[str, Any]:
    return {"quant_method": method, **fields}


TOKEN = integers(8, "token", dynamic=True)
FLOAT_TOKEN = floats("token", dynamic=True)
FLOAT_GROUP = floats("group", dynamic=True, group_size=128)
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
BLOCKS = [128, 128]
FLOAT_BLOCKS = floats("block", block_structure=BLOCKS)
W4A16 = packed(4, "group", group=128)
ROWS, ORDERED = packed(4, "channel"), packed(4, "channel", actorder="static")
FP8 = compressed_tensors("float-quantized", floats("channel"), FLOAT_TOKEN)
GPTQ = other("gptq", bits=4, group_size=128, desc_act=False, sym=True, dataset="c4")
SPARSE = {"format": "sparse-24-bitmask", "targets": ["Linear"]}
DENSE = {"format": "dense", "targets": ["Linear"], "sparsity_structure": "2:4"}

LAYOUTS: list[tuple[dict[str, Any], str]] = [
    (W4A16, "W4A16 (group 128)"),
    (packed(4, "group", group=64, symmetric=False), "W4A16 (group 64, asymmetric)"),
    (ORDERED, "W4A16 (per channel, static act order)"),
    (
        packed(4, "group", group=128, actorder="weight"),
        "W4A16 (group 128, static act order)",
    ),
    (
        compressed_tensors("int-quantized", integers(8, "channel"), TOKEN),
        "W8A8 (per channel)",
    ),
    (
        compressed_tensors("int-quantized", integers(4, "group", group=128), TOKEN),
        "W4A8 (group 128)",
    ),
    (FP8, "FP8 (per channel)"),
    ({**FP8, "kv_cache_scheme": floats("tensor")}, "FP8 (per channel, fp8 cache)"),
    (
        compressed_tensors("float-quantized", FLOAT_BLOCKS, FLOAT_GROUP),
        "FP8 (block 128x128)",
    ),
    (compressed_tensors("float-quantized", floats("tensor")), "FP8 W8A16 (per tensor)"),
    (
        compressed_tensors("nvfp4-pack-quantized", NVFP4, NVFP4 | {"dynamic": "local"}),
        "NVFP4 (group 16)",
    ),
    (compressed_tensors("mxfp4-pack-quantized", MXFP4), "MXFP4 W4A16 (group 32)"),
    (GPTQ, "W4A16 (gptq, group 128)"),
]
# the second of AWQ as its first files said it
OTHERS = """
quant_method: gptq, bits: 8, group_size: -1, desc_act: true, sym: true | W8A16 (gptq, per channel, act order)
quant_method: awq, bits: 4, group_size: 64, zero_point: true, version: gemm | W4A16 (awq, group 64, asymmetric)
quant_method: awq, w_bit: 4, q_group_size: 128, zero_point: false | W4A16 (awq, group 128)
quant_method: auto-round, bits: 4, group_size: 128, sym: true, data_type: int | W4A16 (autoround, group 128)
quant_method: fp8, activation_scheme: dynamic, weight_block_size: [128, 128] | FP8 (block 128x128)
quant_method: fp8, activation_scheme: static | FP8
quant_method: modelopt, quant_algo: NVFP4, group_size: 16 | NVFP4 (group 16)
quant_method: modelopt, quant_algo: FP8, kv_cache_quant_algo: FP8 | FP8 (fp8 cache)
quant_method: bitsandbytes, load_in_4bit: true, bnb_4bit_quant_type: nf4 | NF4 (rtn)
quant_method: quark, global_quant_config: {} | QUARK
"""


def read(said: object, directory: Path = Path("model")) -> Quantisation:
    config = {"model_type": "qwen3", "quantization_config": said}
    found = read_quantisation(directory, config)
    assert found is not None
    return found


@pytest.mark.parametrize(("said", "label"), [*LAYOUTS, *rows(OTHERS)])
def test_layouts_are_named(said, label):
    found = read(said)
    assert (found.label, found.library) == (label, said["quant_method"])


def test_data_set_is_the_calibration():
    """A list holds the texts themselves."""
    named, listed = read(GPTQ), read({**GPTQ, "dataset": ["a text", "another one"]})
    assert (named.calibration, listed.calibration) == ("c4", None)


def test_several_schemes_are_joined():
    groups = {
        "group_0": W4A16["config_groups"]["group_0"],
        "group_1": FP8["config_groups"]["group_0"],
    }
    both = read({**W4A16, "config_groups": groups})
    assert (both.scheme, both.per) == ("W4A16 and FP8", None)


@pytest.mark.parametrize(
    ("recipe", "algorithm"),
    [
        ("a:\n  SmoothQuantModifier: {}\n  GPTQModifier: {}\n", "smoothquant + gptq"),
        ("a:\n  AWQModifier: {}\n  QuantizationModifier: {}\n", "awq"),
        ("    QuantizationModifier:\n      targets: [Linear]\n", "rtn"),
        ("    MyOwnModifier:\n      targets: [Linear]\n", None),
    ],
)
def test_llm_compressors_recipe_names_the_algorithm(tmp_path, recipe, algorithm):
    (tmp_path / "recipe.yaml").write_text(recipe)
    found = read(W4A16, tmp_path)
    assert found.algorithm == algorithm
    assert found.label == (
        f"W4A16 ({algorithm}, group 128)" if algorithm else "W4A16 (group 128)"
    )


UNCLEAR = """
 | field 'quant_method' is missing
quant_method: 4 | field 'quant_method' must be a string, not 4
quant_method: gptq, bits: four | field 'bits' is 'four', not a number of bits
quant_method: awq | field 'w_bit' is None
quant_method: compressed-tensors, config_groups: {} | 'config_groups' quantises no weights
quant_method: compressed-tensors, config_groups: {group_0: {weights: {num_bits: 99}}} | field 'num_bits' is 99
quant_method: compressed-tensors, config_groups: {group_0: []} | config_groups.group_0 must be an object
quant_method: compressed-tensors, sparsity_config: {format: sparse-bitmask} | format 'sparse-bitmask' leaves out
quant_method: modelopt | field 'quant_algo' is missing
"""


@pytest.mark.parametrize(
    ("said", "part"),
    [*rows(UNCLEAR), ("int8", "quantization_config must be an object")],
)
def test_unclear_configuration_is_one_line(said, part):
    message = refused(read, said)
    assert part in message
    assert str(Path("model") / "config.json") in message


# a row has one scale
@pytest.mark.parametrize(
    ("said", "served"), [({**W4A16, "sparsity_config": DENSE}, W4A16), (ORDERED, ROWS)]
)
def test_harmless_fields_are_left_out(said, served):
    config = {**CONFIG, "quantization_config": said}
    before = copy.deepcopy(config)
    assert overrides(config) == {"quantization_config": served}
    assert config == before


@pytest.mark.parametrize(
    "said",
    [
        None,
        W4A16,
        {**W4A16, "sparsity_config": SPARSE},
        packed(4, "group", group=128, actorder="static"),
        GPTQ,
    ],
)
def test_other_configurations_are_served(said):
    config = {**CONFIG, "quantization_config": said}
    assert overrides(config) == {}
