"""What is summed of a module's inputs over the calibration tokens.

Shapes: T tokens of a batch, its sequences end to end; I input columns; N sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from pruning.methods.base import Statistic
from pruning.model import onednn
from pruning.model.batches import Batch


class Accumulator(Protocol):
    """A statistic of one input that is summed over the calibration tokens."""

    def __init__(self, columns: int, sequences: int, device: torch.device) -> None:
        """Empty, for inputs of `columns` columns and a calibration of `sequences` sequences."""
        ...

    def add(self, inputs_TI: Tensor, batch: Batch) -> None:
        """Take one batch."""
        ...

    def result(self) -> Tensor:
        """The finished statistic; nothing is added after it."""
        ...


class ColumnNorms:
    """Squared norm of every input column: sum of x^2 over tokens, divided by the number of sequences, float32.

    Each sequence is summed by itself and the sums are added in the calibration's order, so that the result does not
    depend on how sequences were batched.
    """

    def __init__(self, columns: int, sequences: int, device: torch.device) -> None:
        self._sums_NI = torch.zeros(sequences, columns, dtype=torch.float32, device=device)

    def add(self, inputs_TI: Tensor, batch: Batch) -> None:
        first = start = 0
        for length, count in batch.runs:  # the sums of several sequences in one call are those of one at a time
            run_NTI = inputs_TI[start : start + count * length].view(count, length, inputs_TI.shape[1])
            self._sums_NI[list(batch.order[first : first + count])] = run_NTI.float().square().sum(dim=1)
            first, start = first + count, start + count * length

    def result(self) -> Tensor:
        """norm_sq_I."""
        total_I = torch.zeros_like(self._sums_NI[0])
        for sum_I in self._sums_NI:
            total_I += sum_I
        return total_I / len(self._sums_NI)


class Hessian:
    """2 / N * sum of x x^T over the tokens of N sequences, float32."""

    def __init__(self, columns: int, sequences: int, device: torch.device) -> None:
        self._sum_II = torch.zeros(columns, columns, dtype=torch.float32, device=device)
        self._sequences = sequences

    def add(self, inputs_TI: Tensor, batch: Batch) -> None:
        onednn.add_second_moments(self._sum_II, inputs_TI.float())

    def result(self) -> Tensor:
        """hessian_II; the sum itself, scaled in place: it can be gigabytes."""
        return onednn.mirror(self._sum_II).mul_(2 / self._sequences)


def indifferent(statistic: Tensor) -> Tensor:
    """A statistic of the same shape by which no input is stronger than another, or goes with another."""
    if statistic.ndim == 1:
        return torch.ones_like(statistic)
    return torch.eye(len(statistic), dtype=statistic.dtype, device=statistic.device)


class Gathered:
    """What is wanted of one input: one statistic or several, from the same pass."""

    def __init__(self, kinds: Sequence[Statistic], columns: int, sequences: int, device: torch.device) -> None:
        self._parts = {kind: ACCUMULATORS[kind](columns, sequences, device) for kind in kinds}

    def add(self, inputs_TI: Tensor, batch: Batch) -> None:
        """Take one batch."""
        for part in self._parts.values():
            part.add(inputs_TI, batch)

    def result(self) -> dict[Statistic, Tensor]:
        """The finished statistics; nothing is added after it."""
        return {kind: part.result() for kind, part in self._parts.items()}


ACCUMULATORS: Mapping[Statistic, type[Accumulator]] = {
    Statistic.COLUMN_NORMS: ColumnNorms,
    Statistic.HESSIAN: Hessian,
}
