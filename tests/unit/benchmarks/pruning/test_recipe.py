"""The recipe that the pruning benchmark compares with does the same work as ours."""

from __future__ import annotations

import warnings

import torch

from benchmarks.pruning import recipe
from benchmarks.pruning.synthetic import Shape, write_checkpoint, write_passages
from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune
from tests.support import pruning as tiny

_SHAPE = Shape(hidden=64, intermediate=128, layers=2, heads=4, kv_heads=2, head_dim=16, vocabulary=5000)


def test_the_recipe_and_ours_take_the_same_weights_of_a_synthetic_checkpoint(tmp_path):
    source = write_checkpoint(tmp_path / "dense", _SHAPE)
    passages = write_passages(tmp_path / "passages.txt", 8, 32)
    texts = passages.read_text().splitlines()
    assert {len(text.split()) for text in texts} == {32}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recipe.run(source, tmp_path / "recipe", "wanda", 0.5, texts, 32)
    calibration = CalibrationConfig(source=f"text:{passages}", samples=8, sequence_length=32)
    job = PruneConfig(source=source, method="wanda", sparsity=0.5, calibration=calibration, device="cpu")
    manifest = prune(job, tmp_path / "ours")
    assert manifest.calibration is not None
    assert manifest.calibration.tokens == 8 * 32
    ours, theirs = tiny.weights(tmp_path / "ours"), tiny.weights(tmp_path / "recipe")
    for matrix in manifest.matrices:
        assert torch.equal(ours[matrix.name], theirs[matrix.name])


def test_the_recipe_s_sparsegpt_leaves_kept_weights_alone_for_a_diagonal_hessian():
    weight = torch.randn(8, 32)
    pruned = recipe.prune_sparsegpt(weight, torch.diag(torch.rand(32) + 0.1), 0.5)
    assert int((pruned == 0).sum()) == 128
    torch.testing.assert_close(pruned[pruned != 0], weight[pruned != 0])
