"""A method is one object: registered from here, it prunes, and help, checks and estimates know it."""

from __future__ import annotations

import torch

from pruning.methods import METHODS
from pruning.methods.base import Method
from pruning.methods.patterns import NofM, Unstructured
from pruning.methods.scores import RIA, Magnitude, Wanda
from pruning.methods.sparsegpt import SparseGPT


def test_scores_are_their_formulas():
    weight = torch.tensor([[1.0, -2.0], [0.0, 4.0]], dtype=torch.bfloat16)
    norm_sq = torch.tensor([4.0, 9.0])
    assert Magnitude().score(weight, None).tolist() == [[1, 2], [0, 4]]
    assert Wanda().score(weight, norm_sq).tolist() == [[2, 6], [0, 12]]
    relative = torch.tensor([[1 / 1 + 1 / 3, 2 / 6 + 2 / 3], [0, 4 / 6 + 4 / 4]])
    torch.testing.assert_close(RIA().score(weight, norm_sq), relative * torch.tensor([4.0, 9.0]) ** 0.25)
    assert Wanda().score(weight, norm_sq).dtype == torch.float32


def test_an_empty_row_or_column_has_no_relative_importance():
    weight = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    assert torch.isfinite(RIA().score(weight, torch.ones(2))).all()
    assert RIA().score(weight, torch.ones(2))[0, 0] == 0


def test_every_method_says_what_help_and_estimates_read():
    for method in METHODS:
        assert method.help
        assert "\n" not in method.help
        assert method.needs_calibration == (method.passes > 0)
        if isinstance(method, Method):
            assert method.needs_calibration == (method.statistic is not None)


def test_counts_are_rounded_down_in_every_comparison_group():
    wanda, sparsegpt = Wanda(), SparseGPT()
    third = Unstructured(1 / 3)
    assert wanda.taken(10, 160, third, "row") == 10 * 53
    assert wanda.taken(10, 160, third, "matrix") == 533
    assert sparsegpt.taken(10, 160, third, "matrix") == 426 + 106  # of 128 columns, then of 32
    for method in (wanda, sparsegpt):
        assert method.taken(10, 160, NofM(2, 4), "matrix") == 800
