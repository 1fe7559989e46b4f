"""What flows into the Linear modules of one decoder layer: statistics gathered by hooks, batch by batch.

Modules that are handed the same tensor (query, key and value; gate and up) are found by the tensor's identity and
share one statistic. The pass stops at the last module's input: its output is not needed for any statistic.

Shapes: T tokens of a batch, its sequences end to end; I input columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pruning.errors import PruneError
from pruning.model import onednn
from pruning.model.batches import Batch


class Statistic(Protocol):
    """Something that is summed over the calibration tokens of one input."""

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
        for sequence, part_TI in zip(batch.order, torch.split(inputs_TI, list(batch.lengths)), strict=True):
            self._sums_NI[sequence] = part_TI.float().square().sum(dim=0)

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


class _Complete(Exception):
    """Ends a layer's forward pass when every statistic has its input."""


class Observer:
    """Gathers one statistic per distinct input of a layer's Linear modules."""

    def __init__(self, linears: Mapping[str, nn.Linear], make: Callable[[int], Statistic]) -> None:
        """`make(columns)` builds an empty statistic."""
        self._linears = linears
        self._make = make
        self.groups: dict[str, list[str]] = {}  # first module of a distinct input -> all modules that read it
        self.statistics: dict[str, Statistic] = {}  # by that first module
        self._unseen = set(linears)  # modules that have not run yet; the first pass that sees them all shows the groups
        self._known = False
        self._batch: Batch | None = None
        self._last: tuple[Tensor, str] | None = None  # the input seen last, and who read it first
        self._reached = 0

    def run(self, layer: nn.Module, hidden_1TH: Tensor, keywords: Mapping[str, Any], batch: Batch) -> None:
        """Run the layer on one batch, as far as its statistics need."""
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
            raise PruneError(f"module {min(self._unseen)} did not run in its layer's forward pass")
        self._known = True

    def _see(self, name: str, _module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
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
            self.statistics[name].add(inputs_1TI[0], self._batch)
            self._reached += 1
        if not self._unseen and self._reached == len(self.groups):
            raise _Complete
