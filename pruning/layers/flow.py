"""The calibration text passes through the decoder: `Flow` feeds it to a layer,
`Observer` gathers statistics there.

Modules that receive the same tensor (query, key and value; gate and up) are found by
the tensor's identity and share one statistic. The pass stops at the last module's
input. A matrix of an expert sees the tokens of its expert, and their number is
counted. One that saw none is judged by its weights alone.

`Activations` keep a layer's inputs in memory while they fit, or else in a file, read
and written batch by batch.

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
        self,
        leader: str,
        kinds: Sequence[Statistic] = (),
        columns: int = 0,
        sequences: int = 0,
        device: torch.device | None = None,
    ) -> None:
        """Of an input of so many columns, and a calibration of so many sequences."""
        self.members = [leader]  # modules; the first one names the input
        self.tokens: int | None = None  # where only some tokens come: how many
        self._sequences = sequences
        self._sums = {
            kind: torch.zeros(
                columns if kind is Statistic.HESSIAN else sequences,
                columns,
                dtype=torch.float32,
                device=device,
            )
            for kind in kinds
        }

    def add(self, inputs_TI: Tensor, batch: Batch) -> None:
        if (sums_NI := self._sums.get(Statistic.COLUMN_NORMS)) is not None:
            first = start = 0
            # the sums of several sequences in one call are those of one at a time
            for length, count in batch.runs:
                run_NTI = inputs_TI[start : start + count * length].view(
                    count, length, inputs_TI.shape[1]
                )
                sums_NI[list(batch.order[first : first + count])] = (
                    run_NTI.float().square().sum(dim=1)
                )
                first, start = first + count, start + count * length
        if (sum_II := self._sums.get(Statistic.HESSIAN)) is not None:
            add_second_moments(sum_II, inputs_TI.float())

    def take(self) -> dict[Statistic, Tensor]:
        """The finished statistics, which are forgotten here: they can be gigabytes."""
        statistics: dict[Statistic, Tensor] = {}
        for kind in [*self._sums]:
            sums = self._sums.pop(kind)
            if self.tokens == 0:
                # as if its inputs were equally strong and uncorrelated
                statistics[kind] = (
                    torch.eye(len(sums)).to(sums)
                    if kind is Statistic.HESSIAN
                    else torch.ones_like(sums[0])
                )
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
        device: torch.device,
    ) -> None:
        self.inputs: dict[str, Gathered] = {}  # by the module that reads it first
        self._linears = linears
        self._kinds = kinds
        self._sequences = sequences
        self._device = device
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
                columns = inputs_1TI.shape[-1]
                self.inputs[name] = Gathered(
                    name, self._kinds, columns, self._sequences, self._device
                )
            gathered = self.inputs[name]
            if isinstance(module, Routed):
                tokens = len(module.tokens_R)
                gathered.tokens = (gathered.tokens or 0) + tokens
                if tokens:
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
        upper_II[start : start + _BLOCK, :start] = upper_II[
            :start, start : start + _BLOCK
        ].T
    return upper_II


class Flow:
    """Feeds every batch to one loaded layer at a time."""

    def __init__(
        self, decoder: Decoder, batches: Sequence[Batch], activations: Activations
    ) -> None:
        self._decoder = decoder
        self._batches = batches
        self._activations = activations
        self._sequences = sum(len(batch.lengths) for batch in batches)

    def layers(
        self, report: Progress = silent, *, last: bool = False
    ) -> Iterator[tuple[int, nn.Module]]:
        """Each layer in turn, loaded; what it then gives is the input of the next.
        The `last` layer's output matters to few. Raises JobError if not finite."""
        for number, batch in enumerate(self._batches):
            self._activations.put(number, self._decoder.embed(batch))
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
        observer = Observer(
            self._decoder.linears(index) if linears is None else linears,
            kinds,
            self._sequences,
            self._decoder.device,
        )
        for number, batch in enumerate(self._batches):
            observer.run(
                layer,
                self._activations.get(number),
                self._decoder.keywords(index, batch),
                batch,
            )
        return list(observer.inputs.values())

    def ends(self) -> Tensor:
        """states_NH: the current inputs at the last token of each calibration
        sequence, float64, on the CPU."""
        states_NH = torch.empty(
            self._sequences, self._decoder.config.hidden_size, dtype=torch.float64
        )
        for number, batch in enumerate(self._batches):
            last_N = torch.tensor(batch.lengths).cumsum(0) - 1
            states_NH[list(batch.order)] = (
                self._activations.get(number)[0, last_N].double().cpu()
            )
        return states_NH

    def _pass_on(self, index: int, layer: nn.Module) -> None:
        for number, batch in enumerate(self._batches):
            hidden_1TH = layer(
                self._activations.get(number), **self._decoder.keywords(index, batch)
            )
            # A sum shows NaN and infinity a hundred times faster; it may overflow, too.
            if not math.isfinite(hidden_1TH.sum().item()) and not bool(
                torch.isfinite(hidden_1TH).all()
            ):
                raise JobError(
                    f"layer {index}: its output is not finite on calibration sequence"
                    f" {batch.order[0]}"
                )
            self._activations.put(number, hidden_1TH)


class Activations:
    """hidden_1TH (1, tokens, width) by the number of its batch: in memory, or in
    `file` where all have more than `limit` bytes."""

    def __init__(
        self, batches: Sequence[Batch], decoder: Decoder, limit: int, file: Any
    ) -> None:
        self._dtype, self._device = decoder.dtype, decoder.device
        self._shapes = [
            (1, sum(batch.lengths), decoder.config.hidden_size) for batch in batches
        ]
        self._sizes = [
            math.prod(shape) * self._dtype.itemsize for shape in self._shapes
        ]
        *self._offsets, self.bytes = accumulate(self._sizes, initial=0)
        self.held: dict[int, Tensor] = {}
        self.file = file if self.bytes > limit else None

    def put(self, number: int, hidden_1TH: Tensor) -> None:
        """Keep a batch's inputs; those it had before are overwritten."""
        HEARTBEAT.beat()
        if self.file is None:
            self.held[number] = hidden_1TH
            return
        self.file.seek(self._offsets[number])
        self.file.write(hidden_1TH.contiguous().cpu().view(torch.uint8).numpy().data)

    def get(self, number: int) -> Tensor:
        """The inputs that were put last for a batch, on the device."""
        HEARTBEAT.beat()
        if self.file is None:
            return self.held[number]
        self.file.seek(self._offsets[number])
        buffer = bytearray(self._sizes[number])
        self.file.readinto(buffer)
        return (
            torch.frombuffer(buffer, dtype=self._dtype)
            .view(self._shapes[number])
            .to(self._device)
        )
