"""The calibration text passes through the decoder: `Flow` feeds it to a layer,
`Observer` gathers statistics there.

Modules that receive the same tensor (query, key and value; gate and up) are found by
the tensor's identity and share one statistic. The pass stops at the last module's
input. A matrix of an expert sees the tokens of its expert, and their number is
counted. One that saw none is judged by its weights alone.

Shapes: T tokens of a batch, its sequences end to end; I input columns; N sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from evaluator.core.errors import JobError
from evaluator.core.liveness import HEARTBEAT
from pruning.methods.base import Statistic
from pruning.model.architectures import Routed
from pruning.model.decoder import Decoder, Progress, silent
from pruning.model.packing import Batch

_BLOCK = 256  # columns of a symmetric product that are computed at once


class _Complete(Exception):
    """Ends a layer's forward pass when every statistic has its input."""


class Gathered:
    """One input of a layer: who reads it, and its statistics (see `Statistic`), in
    float32. Squared norms are summed by sequence, in the calibration's order, so they
    do not depend on how sequences were batched."""

    def __init__(
        self, leader: str, kinds: Sequence[Statistic] = (), sequences: int = 0
    ) -> None:
        """`sequences`: how many the calibration has."""
        self.members = [leader]  # modules; the first one names the input
        self.tokens: int | None = None  # where only some tokens come: how many
        self._kinds = kinds
        self._sequences = sequences
        self._sums: dict[Statistic, Tensor] = {}

    def add(self, inputs_TI: Tensor, batch: Batch) -> None:
        columns, device = inputs_TI.shape[1], inputs_TI.device
        for kind in () if self._sums else self._kinds:
            rows = columns if kind is Statistic.HESSIAN else self._sequences
            self._sums[kind] = torch.zeros(rows, columns, device=device)
        if (sums_NI := self._sums.get(Statistic.COLUMN_NORMS)) is not None:
            first = start = 0
            # the sums of several sequences in one call are those of one at a time
            for length, count in batch.runs:
                run_TI = inputs_TI[start : start + count * length]
                run_NTI = run_TI.view(count, length, columns)
                sequences = list(batch.order[first : first + count])
                sums_NI[sequences] = run_NTI.float().square().sum(dim=1)
                first, start = first + count, start + count * length
        if (sum_II := self._sums.get(Statistic.HESSIAN)) is not None:
            add_second_moments(sum_II, inputs_TI.float())

    def take(self) -> dict[Statistic, Tensor]:
        """The finished statistics, which are forgotten here: they can be gigabytes."""
        statistics: dict[Statistic, Tensor] = {}
        for kind in [*self._sums]:
            sums = self._sums.pop(kind)
            # without a token: as if its inputs were equally strong and uncorrelated
            if self.tokens == 0 and kind is Statistic.HESSIAN:
                statistics[kind] = torch.eye(len(sums)).to(sums)
            elif self.tokens == 0:
                statistics[kind] = torch.ones_like(sums[0])
            elif kind is Statistic.HESSIAN:
                statistics[kind] = mirror(sums).mul_(2 / self._sequences)
            else:
                total_I = torch.zeros_like(sums[0])
                for sum_I in sums:
                    total_I += sum_I
                statistics[kind] = total_I / self._sequences
        return statistics


class Observer:
    """Gathers the statistics of each distinct input of a layer's Linear modules."""

    def __init__(
        self,
        linears: Mapping[str, nn.Linear],
        kinds: Sequence[Statistic],
        sequences: int,
    ) -> None:
        self.inputs: dict[str, Gathered] = {}  # by the module that reads it first
        self._linears = linears
        self._kinds = kinds
        self._sequences = sequences
        self._left: set[str] = set()  # modules that have not run yet in this pass

    def run(
        self,
        layer: nn.Module,
        hidden_1TH: Tensor,
        keywords: Mapping[str, Any],
        batch: Batch,
    ) -> None:
        """Run the layer on one batch, as far as its statistics need. Raises JobError
        if a module does not run."""
        self._batch = batch
        # the input seen last, and who read it first
        self._last: tuple[Tensor, str] | None = None
        # the first pass shows the inputs, the others need their leaders
        self._left = set(self.inputs or self._linears)
        handles = [
            self._linears[name].register_forward_pre_hook(partial(self._see, name))
            for name in self._left
        ]
        try:
            layer(hidden_1TH, **keywords)
        except _Complete:
            pass
        finally:
            self._last = None
            for handle in handles:
                handle.remove()
        if self._left:
            raise JobError(
                f"module {min(self._left)} did not run in its layer's forward pass"
            )

    def _see(self, name: str, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs_1TI = arguments[0]
        self._left.discard(name)
        if self._last is not None and self._last[0] is inputs_1TI:
            self.inputs[self._last[1]].members.append(name)
        else:
            self._last = (inputs_1TI, name)
            if name not in self.inputs:
                self.inputs[name] = Gathered(name, self._kinds, self._sequences)
            gathered = self.inputs[name]
            if isinstance(module, Routed):
                tokens = len(module.tokens_R)
                gathered.tokens = (gathered.tokens or 0) + tokens
                batch = self._batch.only(module.tokens_R)
                gathered.add(inputs_1TI[:tokens], batch)
            else:
                gathered.add(inputs_1TI[0], self._batch)
        if not self._left:
            raise _Complete


def add_second_moments(sum_II: Tensor, inputs_TI: Tensor) -> None:
    """Add the upper block triangle of x^T x to `sum_II`; `mirror` fills in the rest."""
    for start in range(0, len(sum_II), _BLOCK):
        part_TB = inputs_TI[:, start : start + _BLOCK]
        sum_II[start : start + _BLOCK, start:].addmm_(part_TB.T, inputs_TI[:, start:])


def mirror(upper_II: Tensor) -> Tensor:
    """Copy what lies above the diagonal blocks to below them, in place."""
    for start in range(_BLOCK, len(upper_II), _BLOCK):
        block = slice(start, start + _BLOCK)
        upper_II[block, :start] = upper_II[:start, block].T
    return upper_II


class Flow:
    """Feeds every batch to one loaded layer at a time. What enters the layer,
    hidden_1TH of each batch, stays in memory, or in `file` where all have more than
    `limit` bytes."""

    def __init__(
        self, decoder: Decoder, batches: Sequence[Batch], limit: int, file: Any
    ) -> None:
        self._decoder = decoder
        self._batches = batches
        self._sequences = sum(len(batch.lengths) for batch in batches)
        width = decoder.config.hidden_size
        self._shapes = [(1, sum(batch.lengths), width) for batch in batches]
        sizes = [math.prod(shape) * decoder.dtype.itemsize for shape in self._shapes]
        *self._offsets, total = accumulate(sizes, initial=0)
        self._file = file if total > limit else None
        self._held: dict[int, Tensor] = {}

    def layers(
        self, report: Progress = silent, *, last: bool = False
    ) -> Iterator[tuple[int, nn.Module]]:
        """Each layer in turn, loaded; what it then gives is the input of the next.
        The `last` layer's output matters to few. Raises JobError if not finite."""
        for number, batch in enumerate(self._batches):
            self._put(number, self._decoder.embed(batch))
        for index, layer in self._decoder.layers(report):
            yield index, layer
            if last or index < len(self._decoder) - 1:
                self._pass_on(index, layer)

    def collect(
        self,
        index: int,
        layer: nn.Module,
        kinds: Sequence[Statistic],
        linears: Mapping[str, nn.Linear] | None = None,
    ) -> list[Gathered]:
        """One pass over every batch: the statistics of each distinct input of a layer's
        Linear modules, or of those given."""
        linears = linears or self._decoder.linears(index)
        observer = Observer(linears, kinds, self._sequences)
        for number, batch in enumerate(self._batches):
            keywords = self._decoder.keywords(index, batch)
            observer.run(layer, self._get(number), keywords, batch)
        return list(observer.inputs.values())

    def ends(self) -> Tensor:
        """states_NH: the current inputs at the last token of each calibration
        sequence, float64, on the CPU."""
        width = self._decoder.config.hidden_size
        states_NH = torch.empty(self._sequences, width, dtype=torch.float64)
        for number, batch in enumerate(self._batches):
            last_N = torch.tensor(batch.lengths).cumsum(0) - 1
            ends_NH = self._get(number)[0, last_N]
            states_NH[list(batch.order)] = ends_NH.double().cpu()
        return states_NH

    def _pass_on(self, index: int, layer: nn.Module) -> None:
        for number, batch in enumerate(self._batches):
            keywords = self._decoder.keywords(index, batch)
            hidden_1TH = layer(self._get(number), **keywords)
            # A sum shows NaN and infinity a hundred times faster; it may overflow, too.
            if not math.isfinite(hidden_1TH.sum().item()) and not bool(
                torch.isfinite(hidden_1TH).all()
            ):
                raise JobError(
                    f"layer {index}: its output is not finite on calibration sequence"
                    f" {batch.order[0]}"
                )
            self._put(number, hidden_1TH)

    def _put(self, number: int, hidden_1TH: Tensor) -> None:
        HEARTBEAT.beat()
        if self._file is None:
            self._held[number] = hidden_1TH
            return
        self._file.seek(self._offsets[number])
        self._file.write(hidden_1TH.contiguous().cpu().view(torch.uint8).numpy().data)

    def _get(self, number: int) -> Tensor:
        HEARTBEAT.beat()
        if self._file is None:
            return self._held[number]
        shape, dtype = self._shapes[number], self._decoder.dtype
        buffer = bytearray(math.prod(shape) * dtype.itemsize)
        self._file.seek(self._offsets[number])
        self._file.readinto(buffer)
        hidden_1TH = torch.frombuffer(buffer, dtype=dtype).view(shape)
        return hidden_1TH.to(self._decoder.device)
