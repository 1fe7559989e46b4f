"""Sequences of different lengths share one forward pass, end to end and without
padding: results equal batch 1.

Everything in a decoder layer but attention works on single tokens, so a layer takes
several sequences as one long row. Attention receives the lengths and runs each
sequence separately, through the library's own function. On a CPU the result equals
batch 1 bit for bit: a row of a matrix product does not depend on the number of rows,
above a few (see `ALONE_BELOW`). Padded attention would sum in another order."""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

Keywords = dict[str, Any]  # of a layer's call
ATTENTION = "resurface_packed"
# A product of fewer rows takes another path through the CPU's libraries, whose float32
# rounding differs: a shorter sequence is run by itself (measured: 12 rows and more
# agree).
ALONE_BELOW = 16


@dataclass(frozen=True, slots=True)
class Segments:
    """A packed call's attention mask: the length of each sequence, and its own mask
    if it has one."""

    lengths: tuple[int, ...]
    masks: tuple[Tensor | None, ...]


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Segments,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attention within each sequence: (1, heads, tokens, width) each, to (1, tokens,
    heads, width)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    inner = ALL_ATTENTION_FUNCTIONS["sdpa"]
    # Neighbours of one length and one mask are a batch: one call.
    segments = zip(attention_mask.lengths, attention_mask.masks, strict=True)
    outputs: list[Tensor] = []
    start = 0
    for _, run in groupby(segments, key=lambda segment: (segment[0], id(segment[1]))):
        same = list(run)
        (length, mask), count = same[0], len(same)
        end = start + count * length
        parts = []
        for whole_1HTW in (query, key, value):
            _, heads, _, width = whole_1HTW.shape
            part_HTW = whole_1HTW[0, :, start:end]
            parts.append(part_HTW.view(heads, count, length, width).transpose(0, 1))
        output_NTHW = inner(module, *parts, mask, **keywords)[0]
        outputs.append(output_NTHW.flatten(0, 1)[None])
        start = end
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


def register(config: Any) -> None:
    """Make layers that hold `config` attend by segments: replaces only its
    scaled-dot-product attention."""
    from transformers import AttentionInterface

    assert config._attn_implementation == "sdpa", config._attn_implementation
    AttentionInterface.register(ATTENTION, _attend)
    config._attn_implementation = ATTENTION


def pack(keywords: Sequence[Mapping[str, Any]], lengths: tuple[int, ...]) -> Keywords:
    """One layer's keywords for sequences end to end, from those for each: tensors
    are (1, tokens, ...)."""
    packed: Keywords = {}
    for name, first in keywords[0].items():
        values = [of_one[name] for of_one in keywords]
        if name == "attention_mask":
            packed[name] = Segments(lengths, tuple(values))
        elif isinstance(first, Tensor):
            packed[name] = torch.cat(values, dim=1)
        elif isinstance(first, tuple):
            packed[name] = tuple(
                torch.cat(parts, dim=1) for parts in zip(*values, strict=True)
            )
        elif isinstance(
            first, MutableMapping
        ):  # for what one layer leaves to another: none here reads it
            packed[name] = {}
        else:
            packed[name] = first
    return packed


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that run together, end to end."""

    sequences: tuple[Tensor, ...]  # of int64 ids
    order: tuple[int, ...]  # which sequence of the calibration each is

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(len(ids) for ids in self.sequences)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Sequences of one length that stand side by side: the length, and how many
        there are."""
        return [(length, len(list(group))) for length, group in groupby(self.lengths)]

    def only(self, tokens_R: Tensor) -> "Batch":
        """Of each sequence the tokens among `tokens_R`, which count from the batch's
        first, in ascending order."""
        tokens_R = tokens_R.cpu()
        ends = torch.tensor(self.lengths).cumsum(dim=0)
        sequence_R = torch.bucketize(tokens_R, ends, right=True)
        counts = torch.bincount(sequence_R, minlength=len(self.lengths))
        ids_R = torch.cat(self.sequences)[tokens_R]
        return Batch(torch.split(ids_R, counts.tolist()), self.order)


def batches(sequences: Sequence[Tensor], token_budget: int) -> list[Batch]:
    """Batches of at most `token_budget` tokens (a longer sequence is alone),
    sequences of like length together."""
    order = sorted(range(len(sequences)), key=lambda i: (-len(sequences[i]), i))
    made: list[list[int]] = []
    room = 0
    for i in order:
        length = len(sequences[i])
        if length > room or length < ALONE_BELOW:
            made.append([])
            room = token_budget
        made[-1].append(i)
        room -= length
    return [Batch(tuple(sequences[i] for i in rows), tuple(rows)) for rows in made]
