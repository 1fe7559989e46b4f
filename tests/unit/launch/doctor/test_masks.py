"""Twins, and what two sides pruned."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file

from launch.doctor.masks import differing, masks_of, write_twins


def test_twins_have_equal_embeddings_and_everything_else_stays(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    tensors = {"model.embed_tokens.weight": torch.randn(7, 4), "model.layers.0.mlp.up_proj.weight": torch.randn(4, 4)}
    save_file(tensors, source / "model.safetensors")
    (source / "config.json").write_text("{}")
    made = load_file(write_twins(source, tmp_path / "twins") / "model.safetensors")
    table = made["model.embed_tokens.weight"]
    assert torch.equal(table[1::2], tensors["model.embed_tokens.weight"][0:6:2])
    assert torch.equal(table[0::2], tensors["model.embed_tokens.weight"][0::2])
    assert torch.equal(made["model.layers.0.mlp.up_proj.weight"], tensors["model.layers.0.mlp.up_proj.weight"])
    assert (tmp_path / "twins" / "config.json").is_file()


def test_the_share_of_weights_that_one_side_pruned(tmp_path):
    weight = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    save_file({"model.layers.0.q.weight": weight, "model.norm.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    masks = masks_of(tmp_path)
    assert masks["model.layers.0.q.weight"].tolist() == [[True, False], [False, True]]
    other = {"model.layers.0.q.weight": torch.tensor([[True, False], [True, True]]), "another": torch.ones(1, 1)}
    assert differing(masks, other) == {"another": 1.0, "model.layers.0.q.weight": 0.25}
