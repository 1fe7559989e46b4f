"""Which sequences run through a layer together: of like length, end to end, within a budget of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor

from pruning.model.packing import ALONE_BELOW


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences that run together, end to end."""

    sequences: tuple[Tensor, ...]  # of int64 ids
    order: tuple[int, ...]  # which sequence of the calibration each is
    lengths: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(len(ids) for ids in self.sequences))

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Sequences of one length that stand side by side: the length, and how many there are."""
        return [(length, len(list(group))) for length, group in groupby(self.lengths)]

    def only(self, tokens_R: Tensor) -> Batch:
        """Of each sequence the tokens among `tokens_R`, which count from the batch's first, in ascending order."""
        ends = torch.tensor(self.lengths).cumsum(dim=0)
        of_sequence = torch.bincount(torch.bucketize(tokens_R.cpu(), ends, right=True), minlength=len(self.lengths))
        return Batch(torch.split(torch.cat(self.sequences)[tokens_R.cpu()], of_sequence.tolist()), self.order)


def batches(sequences: Sequence[Sequence[int]], token_budget: int) -> list[Batch]:
    """Batches of at most `token_budget` tokens (a longer sequence is alone), sequences of like length together."""
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
    return [Batch(tuple(torch.tensor(sequences[i]) for i in rows), tuple(rows)) for rows in made]
