"""Random checkpoints of real shapes, on which benchmarks run."""

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


@pytest.mark.parametrize("tied", [True, False])
def test_random_checkpoint_is_whole(tmp_path, monkeypatch, tied):
    shape = dataclasses.replace(SHAPES["tiny"], tie_word_embeddings=tied)
    monkeypatch.setitem(SHAPES, "tiny", shape)
    monkeypatch.setattr(sys, "argv", ["synthetic", "tiny", str(tmp_path / "model")])
    synthetic.main()
    model = tmp_path / "model"
    tensors = load_file(model / "model.safetensors")
    parameters = sum(math.prod(dimensions) for dimensions in tensors_of(shape).values())
    assert sum(tensor.numel() for tensor in tensors.values()) == parameters
    assert ("lm_head.weight" in tensors) != tied
    assert (
        json.loads((model / "config.json").read_text())["tie_word_embeddings"] is tied
    )
    assert torch.isfinite(tensors["model.embed_tokens.weight"].float()).all()
    assert inspect_checkpoint(model).path == model
