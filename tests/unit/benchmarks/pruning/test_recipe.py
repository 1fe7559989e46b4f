"""The pruning benchmark: its recipe does the same work as ours, on random
checkpoints of real shapes."""

import dataclasses
import json
import math
import sys
import warnings

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.pruning import recipe, synthetic
from benchmarks.pruning.synthetic import (
    SHAPES,
    Shape,
    tensors_of,
    write_checkpoint,
    write_passages,
)
from evaluator.checkpoints.info import inspect_checkpoint
from pruning.run import prune
from tests.support import pruning as tiny

_SHAPE = Shape(64, 128, 2, 4, 2, head_dim=16, vocab_size=5000)


def test_recipe_prunes_as_we_do(tmp_path):
    source = write_checkpoint(tmp_path / "dense", _SHAPE)
    passages = write_passages(tmp_path / "passages.txt", source, 8, 32)
    texts = passages.read_text().splitlines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe.run(source, tmp_path / "recipe", "wanda", 0.5, texts, 32)
    manifest = prune(tiny.job(source, passages, samples=8), tmp_path / "ours")
    assert manifest.calibration.tokens == 8 * tiny.LENGTH
    ours, theirs = tiny.weights(tmp_path / "ours"), tiny.weights(tmp_path / "recipe")
    for matrix in manifest.matrices:
        assert torch.equal(ours[matrix.name], theirs[matrix.name])


def test_diagonal_hessian_keeps_other_weights():
    weight = torch.randn(8, 32)
    pruned = recipe.prune_sparsegpt(weight, torch.diag(torch.rand(32) + 0.1), 0.5)
    assert int((pruned == 0).sum()) == 128
    torch.testing.assert_close(pruned[pruned != 0], weight[pruned != 0])


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
