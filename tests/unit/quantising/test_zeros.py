"""Pruned weights that GPTQ would correct stay at zero in its loop; the loop here has
llm-compressor's shape."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import PruneManifest, read_manifest
from evaluator.checkpoints.sparsity import measure
from launch.sweep.compress import SOURCES
from launch.sweep.models import BUNDLED_MODEL
from pruning.config import PruneConfig
from pruning.run import prune
from quantising.config import QuantiseConfig
from quantising.methods.llm_compressor_job import _keep_zeros
from quantising.run import quantise

STEP, BLOCK = 0.25, 4  # of the rounding; columns that are corrected together
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resurface"
TEXT = {"source": "gazetteer", "samples": 16, "sequence_length": 128}
ROTATION = """
quant_stage:
  quant_modifiers:
    SpinQuantModifier: {rotations: [R2], transform_type: hadamard}
    QuantizationModifier: {targets: [Linear], scheme: W8A8, ignore: [lm_head]}
"""


def rounded(weight):
    return (weight / STEP).round() * STEP


def entry(function):
    """As `ImplBackend.entrypoint` wraps the functions that have several
    implementations."""

    def dispatch(*arguments, **named):
        return function(*arguments, **named)

    dispatch.__wrapped__ = function
    return dispatch


@pytest.fixture
def gptq(monkeypatch):
    """Stand-ins for llm-compressor's modules: its loop, one correction after
    another, in few lines."""
    module = ModuleType("gptq_quantize")

    def order(weight_BOI, hessian_BII, actorder):
        if not actorder:
            return weight_BOI, hessian_BII, None
        by_size = hessian_BII[0].diagonal().argsort(descending=True)
        return (
            weight_BOI[:, :, by_size],
            hessian_BII[:, by_size][:, :, by_size],
            by_size,
        )

    def update(work, inverse, made, errors, losses, *, i1, scale):
        for column in range(work.shape[-1]):
            made[:, :, column] = module.fake_quantize(work[:, :, column].T, scale).T
            error = (work[:, :, column] - made[:, :, column]) / inverse[
                :, column, column, None
            ]
            errors[:, :, column], losses[:, :, column] = error, error.square()
            work[:, :, column:] -= error[..., None] * inverse[:, None, column, column:]

    def quantize(weight_BOI, hessian_BII, actorder=False):
        work, hessian_BII, moved = module.apply_activation_ordering(
            weight_BOI.clone(), hessian_BII, actorder
        )
        upper = torch.linalg.cholesky(torch.linalg.inv(hessian_BII), upper=True)
        for i1 in range(0, work.shape[-1], BLOCK):
            i2 = i1 + BLOCK
            block = work[:, :, i1:i2].clone()
            made, errors, losses = (torch.zeros_like(block) for _ in range(3))
            module.gptq_block_update(
                block, upper[:, i1:i2, i1:i2], made, errors, losses, scale=STEP, i1=i1
            )
            work[:, :, i1:i2] = made
            work[:, :, i2:] -= torch.bmm(errors, upper[:, i1:i2, i2:])
        return work if moved is None else work[:, :, moved.argsort()]

    module.fake_quantize = lambda weight, scale: rounded(weight)
    module.apply_activation_ordering, module.gptq_block_update = order, entry(update)
    module.quantize_weight = quantize
    package = ModuleType("llmcompressor.modifiers.gptq")
    package.gptq_quantize = module
    for name in ("llmcompressor", "llmcompressor.modifiers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    return module


@pytest.fixture
def matrices():
    """Weights (2, 6, 16) that share one correlated input, and its Hessian."""
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 16, generator=made) @ torch.randn(16, 16, generator=made)
    hessian = inputs.T @ inputs + torch.eye(16)
    return torch.randn(2, 6, 16, generator=made), hessian.expand(2, 16, 16)


def loss(weight, made, hessian):
    off = made - weight
    return float((off @ hessian * off).sum())


@pytest.mark.parametrize("actorder", [False, True])
def test_pruned_weights_stay_zero(gptq, matrices, actorder):
    weight, hessian = matrices
    weight[..., ::2] = 0
    weight[1, 2, 5] = 0
    free = gptq.quantize_weight(weight, hessian, actorder)
    assert bool((free[weight == 0] != 0).any())
    _keep_zeros()
    kept = gptq.quantize_weight(weight, hessian, actorder)
    assert bool((kept[weight == 0] == 0).all())
    assert torch.equal(kept, rounded(kept))
    masked_after = torch.where(weight == 0, 0, free)
    assert loss(weight, kept, hessian) < loss(weight, rounded(weight), hessian)
    assert loss(weight, kept, hessian) < loss(weight, masked_after, hessian)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(
    not list(CACHE.glob("llm-compressor-*/installed")),
    reason="llm-compressor has no environment here",
)
@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"method": "gptq", "scheme": "W4A16", "group_size": 64}, "2:4"),
        ({"method": "gptq", "scheme": "W4A16_ASYM", "group_size": 64}, "2:4"),
        ({"method": "smoothquant", "scheme": "W8A8"}, "2:4"),
        ({"method": "awq", "scheme": "W4A16_ASYM", "group_size": 64}, "2:4"),
        # it mixes columns
        ({"method": "recipe", "scheme": "W8A8", "recipe": ROTATION}, "unstructured"),
    ],
)
def test_real_methods_state_what_they_wrote(tmp_path, settings, pattern):
    pruned, out = tmp_path / "pruned", tmp_path / "out"
    prune(
        PruneConfig(source=BUNDLED_MODEL, method="magnitude", pattern="2:4"),
        pruned,
        sources=SOURCES,
    )
    manifest = quantise(
        QuantiseConfig(source=pruned, calibration=TEXT, **settings),
        out,
        sources=SOURCES,
    )
    assert manifest.pattern == pattern
    assert (manifest.measured_sparsity >= 0.5) == (pattern == "2:4")
    names = [each.name for each in read_manifest(pruned, PruneManifest).matrices]
    assert measure(Checkpoint(out), names, "2:4") == (
        manifest.measured_sparsity,
        pattern,
    )
    info = inspect_checkpoint(out)
    assert info.sparsity == manifest.measured_sparsity
    (note,) = info.notes
    assert "tokens of calibration are few" in note
    assert info.pattern.startswith(f"{pattern} + ")
    assert (out / PruneManifest.FILE).exists()
