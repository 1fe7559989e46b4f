"""Zeros are counted in the files, in every layout: exact codes, whatever scales and
zero points are beside them."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import PruneManifest
from evaluator.checkpoints.sparsity import measure
from evaluator.checkpoints.tensors import SINGLE
from pruning.config import PruneConfig
from pruning.run import prune
from tests.support.models import save_tiny_model
from tests.support.quantised import LAYOUTS, quantise


@pytest.fixture(scope="module")
def pruned(tmp_path_factory):
    """A tiny model, 2:4 by magnitude, with its manifest."""
    folder = tmp_path_factory.mktemp("sparsity")
    source = save_tiny_model(folder / "dense", "qwen3_untied", dtype="bfloat16")
    prune(
        PruneConfig(source=source, method="magnitude", pattern="2:4"), folder / "pruned"
    )
    return folder / "pruned"


def names(checkpoint):
    return [
        each["name"]
        for each in json.loads((checkpoint / PruneManifest.FILE).read_text())[
            "matrices"
        ]
    ]


def changed(checkpoint, folder, change):
    """A copy with the manifest of `checkpoint`; `change` mends the tensors in place."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(checkpoint / SINGLE)
    change(weights)
    save_file(weights, folder / SINGLE, metadata={"format": "pt"})
    return folder


OTHERS = ("gptq", "awq")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in OTHERS])
def test_every_layout_is_measured(pruned, tmp_path, layout):
    made = quantise(pruned, tmp_path / "made", layout, twin=tmp_path / "twin")
    values = load_file(tmp_path / "twin" / SINGLE)
    zeros = sum(int((values[name] == 0).sum()) for name in names(pruned))
    share = zeros / sum(values[name].numel() for name in names(pruned))
    assert 0.5 <= share < 0.6
    assert measure(Checkpoint(made), names(pruned), "2:4") == (share, "2:4")
    assert measure(Checkpoint(made), names(pruned), "3:4") == (share, "unstructured")
    info = inspect_checkpoint(made)
    assert info.pattern == f"2:4 + {info.quantisation.label}"
    assert (info.sparsity, info.requested_sparsity) == (share, 0.5)


@pytest.mark.parametrize("layout", OTHERS)
def test_other_layouts_are_noted(pruned, tmp_path, layout):
    info = inspect_checkpoint(quantise(pruned, tmp_path / "made", layout))
    assert (info.sparsity, info.requested_sparsity) == (0.5, 0.5)
    assert "could not be measured in the weights" in info.notes[0]


def test_one_weight_breaks_a_pattern(pruned, tmp_path):
    name = names(pruned)[-1]

    def revive(weights):
        row = weights[name][3]
        row[(row == 0).nonzero()[0]] = 1e-3

    info = inspect_checkpoint(changed(pruned, tmp_path / "revived", revive))
    weights = sum(load_file(pruned / SINGLE)[each].numel() for each in names(pruned))
    assert (info.pattern, info.sparsity) == ("unstructured", 0.5 - 1 / weights)
    (note,) = info.notes
    assert (
        f"{PruneManifest.FILE}: states sparsity 0.5, 2:4; the weights have 0.49" in note
    )


def test_fine_tuned_weights_are_measured(pruned, tmp_path):
    """A manifest that stayed beside weights that are dense again is not repeated."""

    def tune(weights):
        for name in names(pruned):
            weights[name] += 0.01

    info = inspect_checkpoint(changed(pruned, tmp_path / "tuned", tune))
    assert (info.method, info.pattern) == ("magnitude", "unstructured")
    assert info.sparsity < 0.01
    assert len(info.notes) == 1


@pytest.mark.parametrize("change", ["renamed", "a vector", "of bytes"])
def test_what_cannot_be_measured_is_said(pruned, tmp_path, change):
    name = names(pruned)[0]

    def spoil(weights):
        if change == "renamed":
            weights[f"other.{name}"] = weights.pop(name)
        else:
            weights[name] = (
                weights[name].reshape(-1)
                if change == "a vector"
                else weights[name].view(torch.uint8)
            )

    made = changed(pruned, tmp_path / "made", spoil)
    assert measure(Checkpoint(made), names(pruned), "2:4") is None
    assert measure(Checkpoint(made), [], "2:4") is None
