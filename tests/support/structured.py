"""Layers, heads and channels taken out of a whole model in memory, written plainly with
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


def lowest(
    model: Any, sequences: list[Tensor], unit: str, count: int
) -> list[tuple[int, ...]]:
    """By layer the heads or channels with the lowest Wanda scores, whose columns are
    then zero in the model."""
    parts = (
        model.config.num_key_value_heads
        if unit == "heads"
        else model.config.intermediate_size
    )
    gone = []
    for layer in model.model.layers:
        output = layer.self_attn.o_proj if unit == "heads" else layer.mlp.down_proj
        sums = torch.zeros(output.in_features)
        hook = output.register_forward_pre_hook(
            lambda _, inputs, sums=sums: sums.add_(inputs[0][0].pow(2).sum(0))
        )
        logits(model, sequences)
        hook.remove()
        scores = (output.weight.data.abs() * sums.sqrt()).sum(dim=0)
        width = output.in_features // parts
        of_parts = [
            (float(scores[part * width : (part + 1) * width].sum()), part)
            for part in range(parts)
        ]
        chosen = [part for _, part in sorted(of_parts)[:count]]
        for part in chosen:
            output.weight.data[:, part * width : (part + 1) * width] = 0
        gone.append(tuple(sorted(chosen)))
    return gone


def without_heads(model: Any, gone: list[tuple[int, ...]]) -> Any:
    """Key-value heads and the query heads that share them, cut out of the matrices
    one head at a time."""
    config = model.config
    groups, size = config.num_key_value_heads, model.model.layers[0].self_attn.head_dim
    shared = config.num_attention_heads // groups
    for layer, lost in zip(model.model.layers, gone, strict=True):
        attention = layer.self_attn
        kept = [group for group in range(groups) if group not in lost]
        keys = [
            row for group in kept for row in range(group * size, (group + 1) * size)
        ]
        queries = [
            row
            for group in kept
            for row in range(group * shared * size, (group + 1) * shared * size)
        ]
        if hasattr(attention, "qkv_proj"):
            first, second = groups * shared * size, groups * (shared + 1) * size
            rows = [
                *queries,
                *(first + row for row in keys),
                *(second + row for row in keys),
            ]
            attention.qkv_proj.weight.data = attention.qkv_proj.weight.data[rows]
        else:
            _keep_rows(attention.q_proj, queries)
            _keep_rows(attention.k_proj, keys)
            _keep_rows(attention.v_proj, keys)
        attention.o_proj.weight.data = attention.o_proj.weight.data[:, queries]
        if hasattr(attention, "num_key_value_heads"):
            attention.num_key_value_heads = len(kept)
    left = groups - len(gone[0])
    config.num_key_value_heads, config.num_attention_heads = left, left * shared
    return model


def without_channels(model: Any, gone: list[tuple[int, ...]]) -> Any:
    for layer, lost in zip(model.model.layers, gone, strict=True):
        count = layer.mlp.down_proj.in_features
        kept = [channel for channel in range(count) if channel not in lost]
        if hasattr(layer.mlp, "gate_up_proj"):
            _keep_rows(
                layer.mlp.gate_up_proj, [*kept, *(count + channel for channel in kept)]
            )
        else:
            _keep_rows(layer.mlp.gate_proj, kept)
            _keep_rows(layer.mlp.up_proj, kept)
        layer.mlp.down_proj.weight.data = layer.mlp.down_proj.weight.data[:, kept]
    return model


def _keep_rows(linear: nn.Linear, rows: list[int]) -> None:
    linear.weight.data = linear.weight.data[rows]
    if linear.bias is not None:
        linear.bias.data = linear.bias.data[rows]
