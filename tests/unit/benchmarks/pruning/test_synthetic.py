"""Random checkpoints have the shapes of the models that they are named after, and are whole."""

from __future__ import annotations

import dataclasses
import json
import math
import sys

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.pruning import synthetic
from benchmarks.pruning.synthetic import SHAPES, tensors_of
from evaluator.checkpoints.info import inspect_checkpoint


def parameters(shape):
    return sum(math.prod(dimensions) for _, dimensions in tensors_of(shape))


def test_the_shapes_have_the_sizes_of_the_models_that_they_are_named_after():
    """As Qwen's model cards count them: 0.6, 1.7 and 8.2 billion, embeddings included."""
    assert [round(parameters(SHAPES[name]) / 1e9, 1) for name in ("0.6b", "1.7b", "8b")] == [0.6, 1.7, 8.2]


@pytest.mark.parametrize("tied", [True, False])
def test_a_random_checkpoint_is_a_whole_one(tmp_path, monkeypatch, tied):
    shape = dataclasses.replace(SHAPES["tiny"], tied=tied)
    monkeypatch.setitem(SHAPES, "tiny", shape)
    monkeypatch.setattr(sys, "argv", ["synthetic", "tiny", str(tmp_path / "model")])
    synthetic.main()
    model = tmp_path / "model"
    tensors = load_file(model / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters(shape)
    assert ("lm_head.weight" in tensors) != tied
    assert json.loads((model / "config.json").read_text())["tie_word_embeddings"] is tied
    assert torch.isfinite(tensors["model.embed_tokens.weight"].float()).all()
    assert inspect_checkpoint(model).path == model
