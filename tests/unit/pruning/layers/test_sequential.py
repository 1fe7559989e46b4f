"""The driver of layers: experts some at a time give the outcome of one pass, and OWL divides the sparsity."""

import functools

import pytest
import torch
from torch import nn

from pruning.layers import sequential
from pruning.layers.sequential import owl, portions
from pruning.methods.base import Statistic
from pruning.model.architectures import Routed
from pruning.run import prune
from tests.support import pruning as tiny
from tests.support.sweeps import refused


def test_layers_with_more_outliers_keep_more():
    ratios = [pattern.ratio for pattern in owl([0.01, 0.04, 0.02, 0.01], 0.7)]
    assert sum(ratios) / 4 == pytest.approx(0.7)
    assert max(ratios) - min(ratios) == pytest.approx(0.16)
    assert ratios[1] < ratios[2] < ratios[0] == ratios[3]
    assert [pattern.ratio for pattern in owl([0.1, 0.1], 0.5)] == [0.5, 0.5]


@pytest.mark.parametrize("ratio", [0.02, 0.97])
def test_a_ratio_out_of_range_names_the_layer(ratio):
    assert f"sparsity: {ratio} with allocation 'owl' gives layer" in refused(owl, [0.0, 1.0, 0.5], ratio)


def layer() -> dict[str, nn.Linear]:
    found: dict[str, nn.Linear] = {"self_attn.o_proj": nn.Linear(8, 8)}
    for number in range(3):
        found |= {f"mlp.experts.{number}.{name}": Routed(8, 4, bias=False) for name in ("gate", "up")}
        found[f"mlp.experts.{number}.down"] = Routed(4, 8, bias=False)
    return found


def test_where_memory_is_short_some_experts_come_first_and_the_rest_last():
    linears = layer()
    one = (8**2 + 4**2) * 4  # bytes of an expert's Hessians
    assert portions(linears, Statistic.HESSIAN, 3 * one) == [linears]
    assert portions(linears, Statistic.COLUMN_NORMS, 1) == [linears]
    for limit, experts in ((2 * one, [[0, 1], [2]]), (one, [[0], [1], [2]]), (1, [[0], [1], [2]])):
        *some, rest = portions(layer(), Statistic.HESSIAN, limit)
        assert [sorted({int(name.split(".")[2]) for name in each}) for each in some] == experts
        assert all(len(each) % 3 == 0 for each in some)
        assert set(rest) == {"self_attn.o_proj"}


def test_the_outcome_is_that_of_one_pass(checkpoints, passages, tmp_path, monkeypatch):
    source = checkpoints("qwen3_moe", torch.float32, num_hidden_layers=1, mlp_only_layers=[])
    job = tiny.job(source, passages, "sparsegpt")
    prune(job, tmp_path / "one")
    monkeypatch.setattr(sequential, "portions", functools.partial(portions, limit=50_000))
    prune(job, tmp_path / "some")
    one, some = tiny.weights(tmp_path / "one"), tiny.weights(tmp_path / "some")
    assert all(torch.equal(one[name], some[name]) for name in one)
