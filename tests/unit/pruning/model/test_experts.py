"""Experts as modules of their own compute what transformers' fused ones do."""

import pytest
import torch
import transformers
from torch import nn

from pruning.model.architectures import Experts
from tests.support import brute_force
from tests.support import pruning as tiny

NAMES = ("gate", "up", "down")


@pytest.fixture(scope="module", params=tiny.MIXTURES)
def block(request) -> nn.Module:
    model = transformers.AutoModel.from_config(
        tiny.config(request.param, num_hidden_layers=1)
    ).eval()
    torch.manual_seed(0)
    for parameter in model.layers[0].mlp.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.layers[0].mlp


def separated(fused: nn.Module) -> Experts:
    experts = Experts(fused, NAMES)
    for number, expert in enumerate(experts.children()):
        gate, up = fused.gate_up_proj.data[number].chunk(2)
        for name, weight in zip(
            NAMES, (gate, up, fused.down_proj.data[number]), strict=True
        ):
            getattr(expert, name).weight.data = weight
    return experts


@pytest.mark.parametrize("tokens", [1, 60])
def test_experts_equal_the_library(block, tokens):
    hidden = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, weights, chosen = block.gate(hidden)
        ours = separated(block.experts)(hidden, chosen, weights)
        assert torch.equal(
            ours, brute_force.plain_experts(block.experts, hidden, chosen, weights)
        )
        torch.testing.assert_close(
            ours, block.experts(hidden, chosen, weights), rtol=1e-4, atol=1e-5
        )
