"""What flows into the Linear modules of one decoder layer: hooks gather statistics, batch by batch.

Modules that receive the same tensor (query, key and value; gate and up) are found by the tensor's identity and share
one statistic. The pass stops at the last module's input: no statistic needs its output. A matrix of an expert sees the
tokens of its expert, and their number is counted. One that saw none is judged by its weights alone.

Shapes: T tokens of a batch, its sequences end to end; I input columns; N sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from evaluator.core.errors import JobError
from pruning.methods.base import Statistic
from pruning.model import onednn
from pruning.model.architectures import Routed
from pruning.model.packing import Batch


class _Complete(Exception):
    """Ends a layer's forward pass when every statistic has its input."""


class Observer:
    """Gathers the statistics of each distinct input of a layer's Linear modules."""

    def __init__(self, linears: Mapping[str, nn.Linear], make: Callable[[int], Gathered]) -> None:
        """`make(columns)` builds the empty statistics of one input."""
        self._linears = linears
        self._make = make
        self.groups: dict[str, list[str]] = {}  # first module of a distinct input -> all modules that read it
        self.statistics: dict[str, Gathered] = {}  # by that first module
        self.tokens: dict[str, int] = {}  # by that first module, where only some tokens come: how many
        self._unseen = set(linears)  # modules that have not run yet; the first pass that sees them all shows the groups
        self._known = False
        self._batch: Batch | None = None
        self._last: tuple[Tensor, str] | None = None  # the input seen last, and who read it first
        self._reached = 0

    def run(self, layer: nn.Module, hidden_1TH: Tensor, keywords: Mapping[str, Any], batch: Batch) -> None:
        """Run the layer on one batch, as far as its statistics need. Raises JobError if a module does not run."""
        self._batch, self._last, self._reached = batch, None, 0
        handles = [m.register_forward_pre_hook(partial(self._see, n)) for n, m in self._linears.items()]
        try:
            layer(hidden_1TH, **keywords)
        except _Complete:
            pass
        finally:
            self._last = None
            for handle in handles:
                handle.remove()
        if self._unseen:
            raise JobError(f"module {min(self._unseen)} did not run in its layer's forward pass")
        self._known = True

    def take(self, leader: str) -> dict[Statistic, Tensor]:
        """The finished statistics of the input that `leader` reads first; they are forgotten here."""
        found = self.statistics.pop(leader).result()
        return {kind: indifferent(each) for kind, each in found.items()} if self.tokens.get(leader) == 0 else found

    def _see(self, name: str, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs_1TI = arguments[0]
        self._unseen.discard(name)
        if self._last is not None and self._last[0] is inputs_1TI:
            if not self._known:
                self.groups[self._last[1]].append(name)
        else:
            self._last = (inputs_1TI, name)
            assert self._batch is not None
            if not self._known:
                self.groups[name] = [name]
                self.statistics[name] = self._make(inputs_1TI.shape[-1])
            if isinstance(module, Routed):
                tokens = len(module.tokens_R)
                self.tokens[name] = self.tokens.get(name, 0) + tokens
                if tokens:
                    self.statistics[name].add(inputs_1TI[:tokens], self._batch.only(module.tokens_R))
            else:
                self.statistics[name].add(inputs_1TI[0], self._batch)
            self._reached += 1
        if not self._unseen and self._reached == len(self.groups):
            raise _Complete


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
    """A statistic of the same shape for equally strong, uncorrelated inputs."""
    if statistic.ndim == 1:
        return torch.ones_like(statistic)
    return torch.eye(len(statistic), dtype=statistic.dtype, device=statistic.device)


class Gathered:
    """The statistics of one input: one or several, from the same pass."""

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
