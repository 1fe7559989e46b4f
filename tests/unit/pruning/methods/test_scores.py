"""Scores are float32, and their corner cases are numbers."""

from __future__ import annotations

import torch

from pruning.methods.magnitude import Magnitude
from pruning.methods.ria import RIA
from pruning.methods.wanda import Wanda


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
