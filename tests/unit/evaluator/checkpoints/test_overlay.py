"""What is left out of a configuration before it is served, and the directory of links that holds the rest."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from evaluator.checkpoints.overlay import overlay, served_config
from tests.support.checkpoint_files import CONFIG, write
from tests.support.quantised import compressed_tensors, integers

W4A16 = compressed_tensors("pack-quantized", integers(4, "group", group=128))
DENSE = {"format": "dense", "targets": ["Linear"], "sparsity_structure": "2:4"}


def test_a_sparsity_config_of_dense_tensors_is_left_out() -> None:
    config = {**CONFIG, "quantization_config": {**W4A16, "sparsity_config": DENSE}}
    before = copy.deepcopy(config)
    assert served_config(config) == {**CONFIG, "quantization_config": W4A16}
    assert config == before


def test_a_static_order_of_columns_says_nothing_where_a_row_has_one_scale() -> None:
    ordered = compressed_tensors("pack-quantized", integers(4, "channel", actorder="static"))
    plain = compressed_tensors("pack-quantized", integers(4, "channel"))
    assert served_config({**CONFIG, "quantization_config": ordered}) == {**CONFIG, "quantization_config": plain}


@pytest.mark.parametrize(
    "said",
    [
        None,
        W4A16,
        {**W4A16, "sparsity_config": {"format": "sparse-24-bitmask", "targets": ["Linear"]}},
        compressed_tensors("pack-quantized", integers(4, "group", group=128, actorder="static")),
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True},
    ],
)
def test_everything_else_is_served_as_it_is(said: object) -> None:
    config = {**CONFIG, "quantization_config": said}
    assert served_config(config) is config


def test_an_overlay_links_the_files_and_leaves_them_alone(tmp_path: Path) -> None:
    checkpoint = write(tmp_path / "checkpoint")
    (checkpoint / "tokenizer.json").write_text("{}")
    before = {file.name: file.read_bytes() for file in checkpoint.iterdir()}
    (tmp_path / "over").mkdir()
    made = overlay(checkpoint, tmp_path / "over", {"model_type": "other"})
    assert json.loads((made / "config.json").read_text()) == {"model_type": "other"}
    assert {file.name: file.read_bytes() for file in checkpoint.iterdir()} == before
    assert {file.name for file in made.iterdir()} == set(before)
    assert all(file.is_symlink() for file in made.iterdir() if file.name != "config.json")
