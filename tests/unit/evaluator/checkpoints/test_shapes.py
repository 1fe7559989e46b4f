"""Sizes in config.json that are not those of the tensors are refused; what a good checkpoint may leave out is not."""

import json

import pytest
import torch

from evaluator.checkpoints.info import inspect_checkpoint, read_positions, stored_dtype
from evaluator.checkpoints.shapes import expert_field, text_model
from launch.sweep.estimate import vocabulary_of
from tests.support.checkpoint_files import only_error, write
from tests.support.models import save_tiny_model

SIZES = {"vocab_size": 6, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 3}
CONFIG = {"model_type": "qwen3", "dtype": "float32", **SIZES}


def made(directory, **changes):
    """A checkpoint of two layers; a field that is changed to None is left out."""
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    weights = {"model.embed_tokens.weight": torch.ones(6, 8), "model.norm.weight": torch.ones(8)}
    weights |= {f"model.layers.{layer}.self_attn.q_proj.weight": torch.ones(6, 8) for layer in range(2)}
    return write(directory, weights, config)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 7}, "field 'vocab_size' is 7, but tensor 'model.embed_tokens.weight' of model.safetensors has"),
        ({"hidden_size": 9}, "field 'hidden_size' is 9, but tensor 'model.embed_tokens.weight'"),
        ({"hidden_size": "8"}, "field 'hidden_size' is '8', not a count"),
        ({"num_hidden_layers": 3}, "field 'num_hidden_layers' is 3, but the weights have 2 layers"),
        ({"num_hidden_layers": 1}, "but the weights have 2 layers, the last of them model.layers.1"),
        ({"head_dim": 4}, "field 'num_attention_heads * head_dim' is 8, but tensor 'model.layers.0.self_attn.q_proj"),
        ({"model_type": "llama", "head_dim": None}, "(hidden_size // num_attention_heads)' is 8, but tensor"),
    ],
)
def test_a_size_that_is_not_the_tensors_is_named(tmp_path, changes, said):
    message = only_error(made(tmp_path / "m", **changes))
    assert message.startswith(f"{tmp_path / 'm' / 'config.json'}: field ")
    assert said in message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        dict.fromkeys(SIZES),  # all left to the architecture
        {"head_dim": None},  # Qwen3's is 128 where it does not say
        {"head_dim": 4, "quantization_config": {"quant_method": "awq", "bits": 4}},
        {"head_dim": 4, "model_type": "qwen3_next"},  # not an architecture whose tensors are known here
    ],
)
def test_what_does_not_apply_is_skipped(tmp_path, changes):
    directory = made(tmp_path / "m", **changes)
    assert inspect_checkpoint(directory).tensors == 4
    packed = {"model.embed_tokens.weight": torch.ones(6, 1, dtype=torch.int32), "model.norm.weight": torch.ones(8)}
    config = json.loads((directory / "config.json").read_text())
    assert inspect_checkpoint(write(directory, packed, config)).tensors == 2


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3_untied", "mistral", "phi3"])
def test_good_checkpoints_pass(tmp_path, architecture):
    directory = save_tiny_model(tmp_path / "m", architecture)
    assert inspect_checkpoint(directory).tensors > 4
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 2 * config["hidden_size"]}))
    assert "'hidden_size'" in only_error(directory)


TOWERS = {"vocab_size": 262_208, "max_position_embeddings": 131_072, "head_dim": 256, "dtype": "bfloat16"}
TEXT = {**TOWERS, "model_type": "gemma3_text", "num_experts": 8}
WHOLE = {"model_type": "gemma3", "head_dim": 1, "text_config": TEXT}


def test_whoever_reads_a_size_reads_the_text_model_s(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WHOLE))
    assert read_positions(tmp_path, unknown=1) == TOWERS["max_position_embeddings"]
    assert vocabulary_of(tmp_path) == TOWERS["vocab_size"]
    assert stored_dtype(WHOLE, []) == "bfloat16"
    assert stored_dtype({"torch_dtype": "float32", **WHOLE}, []) == "float32"
    assert expert_field(WHOLE) == "num_experts"
    assert text_model(WHOLE)["head_dim"] == TOWERS["head_dim"]
    assert text_model({"head_dim": 64, "text_config": None}) == {"head_dim": 64, "text_config": None}
