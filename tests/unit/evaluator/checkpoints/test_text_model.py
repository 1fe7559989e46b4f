"""Models of several towers: whoever reads a size reads the text model's."""

from __future__ import annotations

import json

import pytest

from evaluator.checkpoints.info import read_positions, stored_dtype
from evaluator.checkpoints.shapes import expert_field, text_model
from launch.sweep.estimate import vocabulary_of

SIZES = {"vocab_size": 262_208, "max_position_embeddings": 131_072, "head_dim": 256, "dtype": "bfloat16"}
WHOLE = {"model_type": "gemma3", "text_config": {**SIZES, "model_type": "gemma3_text", "num_experts": 8}}


def test_the_text_model_s_settings_come_before_those_of_the_whole():
    text = {"head_dim": 256}
    settings = text_model({"model_type": "gemma3", "head_dim": 1, "text_config": text})
    assert settings == {"model_type": "gemma3", "head_dim": 256, "text_config": text}


@pytest.mark.parametrize("config", [{"head_dim": 64}, {"head_dim": 64, "text_config": None}])
def test_a_model_of_one_tower_is_its_own_text_model(config):
    assert text_model(config) == config


def test_every_reader_of_a_size_reads_the_text_model_s(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(WHOLE))
    assert read_positions(tmp_path, unknown=1) == SIZES["max_position_embeddings"]
    assert vocabulary_of(tmp_path) == SIZES["vocab_size"]
    assert stored_dtype(WHOLE, []) == "bfloat16"
    assert expert_field(WHOLE) == "num_experts"
    assert text_model(WHOLE)["head_dim"] == SIZES["head_dim"]


def test_the_dtype_of_the_whole_comes_first():
    assert stored_dtype({"torch_dtype": "float32", **WHOLE}, []) == "float32"
