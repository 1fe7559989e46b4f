"""The experts of a mixture as modules of their own, under the checkpoint's names.

transformers keeps all experts of a layer in two tensors of three dimensions; checkpoints hold three matrices for each
expert. Here each matrix is an `nn.Linear` again, so that it is read, observed, pruned and written like any other, and
its input is the tokens that the router sends to its expert and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pruning.model.packing import ALONE_BELOW


class Routed(nn.Linear):
    """A matrix of an expert."""

    tokens_R: Tensor  # which tokens of the call its input's first rows are, in their order; other rows are filling


class Expert(nn.Module):
    """down(activation(gate(x)) * up(x)), its matrices named as in the checkpoint."""

    def __init__(self, width: int, inner: int, activation: Callable[[Tensor], Tensor], names: tuple[str, ...]) -> None:
        super().__init__()
        matrices = [
            Routed(width, inner, bias=False),
            Routed(width, inner, bias=False),
            Routed(inner, width, bias=False),
        ]
        for name, matrix in zip(names, matrices, strict=True):
            self.add_module(name, matrix)
        self._names = names
        self._activation = activation

    def forward(self, inputs_RH: Tensor, tokens_R: Tensor) -> Tensor:
        """(routed tokens, width) to the same. Its modules are called even where there is no token."""
        rows = len(inputs_RH)
        gate, up, down = (self.get_submodule(name) for name in self._names)
        for module in (gate, up, down):
            module.tokens_R = tokens_R
        if 0 < rows < ALONE_BELOW:  # so that a token's result does not depend on who else is sent here
            inputs_RH = functional.pad(inputs_RH, (0, 0, 0, ALONE_BELOW - rows))
        outputs_RH: Tensor = down(self._activation(gate(inputs_RH)) * up(inputs_RH))
        return outputs_RH[:rows]


class Experts(nn.Module):
    """All experts of a layer; in the place of transformers' module, and called as that is."""

    def __init__(self, fused: Any, names: tuple[str, ...]) -> None:
        """`fused` has gate_up_proj (experts, 2 * inner, width) and down_proj (experts, width, inner)."""
        super().__init__()
        experts, width, inner = fused.down_proj.shape
        assert fused.gate_up_proj.shape == (experts, 2 * inner, width), fused.gate_up_proj.shape
        for number in range(experts):
            self.add_module(str(number), Expert(width, inner, fused.act_fn, names))

    def forward(self, hidden_TH: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """The sum of each token's experts by their weights; `chosen_TK` are the K experts of each token."""
        outputs_TH = torch.zeros_like(hidden_TH)
        for number, expert in enumerate(self.children()):
            tokens_R, places_R = (chosen_TK == number).nonzero(as_tuple=True)
            routed_RH = expert(hidden_TH[tokens_R], tokens_R) * weights_TK[tokens_R, places_R, None]
            outputs_TH.index_add_(0, tokens_R, routed_RH.to(outputs_TH.dtype))
        return outputs_TH


def separate(module: nn.Module, names: tuple[str, ...]) -> None:
    """Put an `Experts` in the place of every fused one below `module`, on the meta device.

    `names` are those of the gate, up and down matrices in the checkpoint.
    """
    for child_name, child in list(module.named_children()):
        weight = getattr(child, "gate_up_proj", None)
        if isinstance(weight, nn.Parameter) and weight.ndim == 3:
            with torch.device("meta"):
                setattr(module, child_name, Experts(child, names))
        else:
            separate(child, names)
