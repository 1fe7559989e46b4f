"""Layers taken out of a whole model in memory, written plainly with
transformers.

What smaller checkpoints are compared with. Nothing of `pruning` is used: one sequence
at a time, every state kept.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn


def layers_of(model: Any) -> Any:
    return (
        model.model.language_model.layers
        if hasattr(model.model, "language_model")
        else model.model.layers
    )


def logits(model: Any, sequences: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return [model(input_ids=ids, use_cache=False).logits for ids in sequences]


def distances(model: Any, sequences: list[Tensor], count: int) -> list[float]:
    """Angular distances between the inputs of layers l and l + count at the last
    token, for every l."""
    last: list[Tensor] = []
    hook = layers_of(model)[-1].register_forward_hook(
        lambda _module, _inputs, output: last.append(output)
    )
    total = torch.zeros(len(layers_of(model)) - count + 1, dtype=torch.float64)
    for ids in sequences:
        with torch.no_grad():
            states = list(
                model(
                    input_ids=ids, use_cache=False, output_hidden_states=True
                ).hidden_states
            )
        states[-1] = last.pop()  # the library's own comes after the final norm
        ends = [state[0, -1].double() for state in states]
        for first in range(len(total)):
            one, other = ends[first], ends[first + count]
            total[first] += (
                math.acos(float(one @ other / one.norm() / other.norm())) / math.pi
            )
    hook.remove()
    return (total / len(sequences)).tolist()


class Through(nn.Module):
    """A layer that is not there."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:
        return hidden


def without_layers(model: Any, gone: tuple[int, ...]) -> Any:
    for layer in gone:
        layers_of(model)[layer] = Through()
    return model
