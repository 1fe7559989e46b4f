"""The calibration text passes through the decoder: `Flow` feeds it to a layer, `Activations` keep the layer's inputs.

Activations stay in memory while they fit; otherwise one file on disk holds them. The file is read and written batch by
batch, so that resident memory holds one batch.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from evaluator.core.errors import JobError
from evaluator.core.liveness import HEARTBEAT
from pruning.layers.observer import Gathered, Observer
from pruning.methods.base import Statistic
from pruning.model.decoder import Decoder
from pruning.model.packing import Batch


class Flow:
    """Feeds every batch to one loaded layer at a time."""

    def __init__(self, decoder: Decoder, batches: Sequence[Batch], activations: Activations) -> None:
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
        statistics: Sequence[Statistic],
        linears: Mapping[str, nn.Linear] | None = None,
    ) -> Observer:
        """One pass over every batch: `statistics` of each distinct input of its Linear modules, or of those given."""
        make = partial(Gathered, statistics, sequences=self._sequences, device=self._decoder.device)
        observer = Observer(self._decoder.linears(index) if linears is None else linears, make)
        for number, batch in enumerate(self._batches):
            observer.run(layer, self._activations.get(number), self._decoder.keywords(index, batch), batch)
        return observer

    def ends(self) -> Tensor:
        """states_NH: the current inputs at the last token of each calibration sequence, float64, on the CPU."""
        states_NH = torch.empty(self._sequences, self._decoder.config.hidden_size, dtype=torch.float64)
        for number, batch in enumerate(self._batches):
            last_N = torch.tensor(batch.lengths).cumsum(0) - 1
            states_NH[list(batch.order)] = self._activations.get(number)[0, last_N].double().cpu()
        return states_NH

    def advance(self, index: int, layer: nn.Module, *, last: bool = False) -> None:
        """Make a layer's outputs the current inputs. Raises JobError if an output is not finite.

        `last`: those of the last layer too, which few read.
        """
        if index == len(self._decoder) - 1 and not last:
            return
        for number, batch in enumerate(self._batches):
            hidden_1TH = layer(self._activations.get(number), **self._decoder.keywords(index, batch))
            # A sum shows NaN and infinity a hundred times faster; it may overflow, too.
            if not math.isfinite(hidden_1TH.sum().item()) and not bool(torch.isfinite(hidden_1TH).all()):
                raise JobError(f"layer {index}: its output is not finite on calibration sequence {batch.order[0]}")
            self._activations.put(number, hidden_1TH)


class Activations:
    """hidden_1TH (1, tokens, width) by the number of its batch. Leaving the context frees memory and disk."""

    def __init__(
        self, batches: Sequence[Batch], width: int, dtype: torch.dtype, device: torch.device, limit: int, folder: Path
    ) -> None:
        """`limit`: bytes that may be held in memory; more goes to an unnamed file in `folder`."""
        self._shapes = [(1, sum(batch.lengths), width) for batch in batches]
        self._dtype, self._device = dtype, device
        sizes = [tokens * width * dtype.itemsize for _, tokens, width in self._shapes]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self.bytes = sum(sizes)
        self._held: dict[int, Tensor] = {}
        self._file = tempfile.TemporaryFile(dir=folder) if self.bytes > limit else None  # noqa: SIM115
        self._sizes = sizes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.clear()
        if self._file is not None:
            self._file.close()

    def put(self, number: int, hidden_1TH: Tensor) -> None:
        """Keep a batch's inputs; those it had before are overwritten."""
        HEARTBEAT.beat()
        if self._file is None:
            self._held[number] = hidden_1TH
            return
        self._file.seek(self._offsets[number])
        self._file.write(hidden_1TH.contiguous().cpu().view(torch.uint8).numpy().data)

    def get(self, number: int) -> Tensor:
        """The inputs that were put last for a batch, on the device."""
        HEARTBEAT.beat()
        if self._file is None:
            return self._held[number]
        self._file.seek(self._offsets[number])
        buffer = bytearray(self._sizes[number])
        self._file.readinto(buffer)
        return torch.frombuffer(buffer, dtype=self._dtype).view(self._shapes[number]).to(self._device)
