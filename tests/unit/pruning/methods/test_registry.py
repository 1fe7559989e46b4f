"""A method is one object: registered from here, it prunes, and help, checks and estimates know it."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from evaluator.core.errors import InputError
from pruning.config import PruneConfig, needs_calibration
from pruning.methods import METHODS
from pruning.methods.base import Method, ScoringMethod
from pruning.methods.patterns import NofM, Unstructured
from pruning.methods.scores import RIA, Magnitude, Wanda
from pruning.methods.sparsegpt import SparseGPT
from pruning.run import prune
from pruning.verify import verify
from tests.support import pruning as tiny


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


class Leftmost(ScoringMethod):
    """The first columns go."""

    name = "leftmost"
    help = "the first columns of each matrix go"
    group = "row"

    def score(self, weight_OI, norm_sq_I):
        return torch.arange(weight_OI.shape[1], dtype=torch.float32).expand(weight_OI.shape).contiguous()


def test_a_method_prunes_as_soon_as_it_is_registered(checkpoints, tmp_path):
    source = checkpoints("qwen3")
    with METHODS.temporarily(Leftmost()):
        config = PruneConfig(source=source, method="leftmost", sparsity=0.25, device="cpu")
        manifest = prune(config, tmp_path / "out")
    assert manifest.method == "leftmost"
    assert verify(tmp_path / "out") == []
    pruned = tiny.weights(tmp_path / "out")
    for matrix in manifest.matrices:
        quarter = matrix.columns // 4
        assert (pruned[matrix.name][:, :quarter] == 0).all()
        assert (pruned[matrix.name][:, quarter:] != 0).any()
        assert matrix.zeros == matrix.requested == matrix.rows * quarter


def test_an_unknown_method_is_an_error_everywhere(tmp_path):
    for use in (lambda: METHODS["wnada"], lambda: needs_calibration("wnada", "uniform")):
        with pytest.raises(InputError, match="unknown method 'wnada'; did you mean 'wanda'"):
            use()
    with pytest.raises(ValidationError, match="unknown method 'wnada'; did you mean 'wanda'"):
        PruneConfig(source=tmp_path, method="wnada", sparsity=0.5)


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
