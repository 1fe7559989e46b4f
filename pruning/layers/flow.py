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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from evaluator.core.errors import JobError
from evaluator.core.liveness import HEARTBEAT
from pruning.methods.base import Statistic
from pruning.model.architectures import Routed
from pruning.model.decoder import Decoder
from pruning.model.packing import Batch

_BLOCK = 256  # columns of a symmetric product that are computed at once


class _Complete(Exception):
    """Ends a layer's forward pass when every statistic has its input."""


class Observer:
    """Gathers the statistics of each distinct input of a layer's Linear modules."""

    def __init__(
        self, linears: Mapping[str, nn.Linear], make: Callable[[int], Gathered]
    ) -> None:
        """`make(columns)` builds the empty statistics of one input."""
        self._linears = linears
        self._make = make
        # first module of a distinct input -> all modules that read it
        self.groups: dict[str, list[str]] = {}
        self.statistics: dict[str, Gathered] = {}  # by that first module
        # by that first module, where only some tokens come: how many
        self.tokens: dict[str, int] = {}
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
        # the first pass shows the groups, the others need their leaders
        self._left = set(self.groups or self._linears)
        handles = [
            self._linears[n].register_forward_pre_hook(partial(self._see, n))
            for n in self._left
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

    def take(self, leader: str) -> dict[Statistic, Tensor]:
        """The finished statistics of the input that `leader` reads first; they are
        forgotten here."""
        found = self.statistics.pop(leader).result()
        # as if its inputs were equally strong and uncorrelated
        if self.tokens.get(leader) == 0:
            for kind, each in found.items():
                found[kind] = (
                    torch.ones_like(each)
                    if each.ndim == 1
                    else torch.eye(len(each)).to(each)
                )
        return found

    def _see(self, name: str, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        inputs_1TI = arguments[0]
        self._left.discard(name)
        if self._last is not None and self._last[0] is inputs_1TI:
            self.groups[self._last[1]].append(name)
        else:
            self._last = (inputs_1TI, name)
            if name not in self.groups:
                self.groups[name] = [name]
                self.statistics[name] = self._make(inputs_1TI.shape[-1])
            if isinstance(module, Routed):
                tokens = len(module.tokens_R)
                self.tokens[name] = self.tokens.get(name, 0) + tokens
                if tokens:
                    self.statistics[name].add(
                        inputs_1TI[:tokens], self._batch.only(module.tokens_R)
                    )
            else:
                self.statistics[name].add(inputs_1TI[0], self._batch)
        if not self._left:
            raise _Complete


class Gathered:
    """The statistics of one input, from the same pass; see `Statistic`. float32.
    Squared norms are summed by sequence, in the calibration's order, so they do not
    depend on how sequences were batched."""

    def __init__(
        self,
        kinds: Sequence[Statistic],
        columns: int,
        sequences: int,
        device: torch.device,
    ) -> None:
        """Empty, for inputs of `columns` columns and a calibration of `sequences`
        sequences."""
        sizes = {Statistic.COLUMN_NORMS: sequences, Statistic.HESSIAN: columns}
        self._sums = {
            kind: torch.zeros(sizes[kind], columns, dtype=torch.float32, device=device)
            for kind in kinds
        }
        self._sequences = sequences

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

    def result(self) -> dict[Statistic, Tensor]:
        """The finished statistics; nothing is added after it."""
        found: dict[Statistic, Tensor] = {}
        for kind, sums in self._sums.items():
            # the sum itself, scaled in place: it can be gigabytes
            if kind is Statistic.HESSIAN:
                found[kind] = mirror(sums).mul_(2 / self._sequences)
            else:
                total_I = torch.zeros_like(sums[0])
                for sum_I in sums:
                    total_I += sum_I
                found[kind] = total_I / self._sequences
        return found


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

    def start(self) -> None:
        """Make the first layer's inputs the current ones."""
        for number, batch in enumerate(self._batches):
            self._activations.put(number, self._decoder.embed(batch))

    def observe(
        self,
        index: int,
        layer: nn.Module,
        statistics: list[Statistic],
        linears: Mapping[str, nn.Linear] | None = None,
    ) -> Observer:
        """One pass over every batch: `statistics` of each distinct input of its
        Linear modules, or of those given."""
        make = partial(
            Gathered, statistics, sequences=self._sequences, device=self._decoder.device
        )
        observer = Observer(
            self._decoder.linears(index) if linears is None else linears, make
        )
        for number, batch in enumerate(self._batches):
            observer.run(
                layer,
                self._activations.get(number),
                self._decoder.keywords(index, batch),
                batch,
            )
        return observer

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

    def advance(self, index: int, layer: nn.Module, *, last: bool = False) -> None:
        """Make a layer's outputs the inputs; the `last` layer's too, which few read.
        Raises JobError if not finite."""
        if index == len(self._decoder) - 1 and not last:
            return
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
