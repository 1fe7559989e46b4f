"""Sequences of different lengths in one forward pass, laid end to end without padding: results as one at a time.

Everything in a decoder layer but attention works on each token by itself, so it can be given the tokens of several
sequences as one long row. Attention is told where the sequences end and runs each by itself, through the library's
own function. On a CPU the outcome equals batch 1 bit for bit: a row of a matrix product does not depend on how many
rows there are, once there are a few (see `ALONE_BELOW`), whereas padded attention is summed in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

ATTENTION = "resurface_packed"
# A product of fewer rows takes another path through the CPU's libraries, whose float32 rounding differs: a shorter
# sequence is run by itself (measured: 12 rows and more agree).
ALONE_BELOW = 16


@dataclass(frozen=True, slots=True)
class Segments:
    """What a packed call passes for an attention mask: the length of each sequence, and its own mask if it has one."""

    lengths: tuple[int, ...]
    masks: tuple[Tensor | None, ...]


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Segments, **keywords: Any
) -> tuple[Tensor, None]:
    """Attention within each sequence: (1, heads, tokens, width) each, to (1, tokens, heads, width)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    inner = ALL_ATTENTION_FUNCTIONS["sdpa"]
    # Neighbours of one length and one mask are a batch: one call.
    segments = list(zip(attention_mask.lengths, attention_mask.masks, strict=True))
    runs = [list(run) for _, run in groupby(segments, key=lambda segment: (segment[0], id(segment[1])))]
    tokens = [len(run) * run[0][0] for run in runs]
    outputs: list[Tensor] = []
    for run, *parts in zip(runs, *(torch.split(whole, tokens, dim=2) for whole in (query, key, value)), strict=True):
        q, k, v = (_as_batch(part, len(run)) for part in parts)
        outputs.append(inner(module, q, k, v, run[0][1], **keywords)[0].flatten(0, 1)[None])
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def _as_batch(whole_1HTW: Tensor, count: int) -> Tensor:
    """`count` sequences of the same length end to end, as (count, heads, tokens, width)."""
    _, heads, tokens, width = whole_1HTW.shape
    return whole_1HTW.view(heads, count, tokens // count, width).transpose(0, 1)


def register(config: Any) -> None:
    """Make the layers built from a transformers configuration attend by segments.

    `config` is the object that they hold. Only its scaled-dot-product attention is replaced.
    """
    from transformers import AttentionInterface

    assert config._attn_implementation == "sdpa", config._attn_implementation
    AttentionInterface.register(ATTENTION, _attend)
    config._attn_implementation = ATTENTION


def pack(keywords: Sequence[Mapping[str, Any]], lengths: tuple[int, ...]) -> dict[str, Any]:
    """One layer's keywords for sequences end to end, from those for each: tensors are (1, tokens, ...)."""
    packed: dict[str, Any] = {}
    for name, first in keywords[0].items():
        values = [of_one[name] for of_one in keywords]
        if name == "attention_mask":
            packed[name] = Segments(lengths, tuple(values))
        elif isinstance(first, Tensor):
            packed[name] = torch.cat(values, dim=1)
        elif isinstance(first, tuple):
            packed[name] = tuple(torch.cat(parts, dim=1) for parts in zip(*values, strict=True))
        elif isinstance(first, MutableMapping):  # for what one layer leaves to another: none here reads it
            packed[name] = {}
        else:
            packed[name] = first
    return packed
