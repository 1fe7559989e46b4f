"""The calibration text on its way through the decoder: the inputs of one layer after another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from pruning.errors import PruneError
from pruning.layers.activations import Activations
from pruning.layers.observer import Observer
from pruning.layers.statistics import Gathered
from pruning.methods.base import Statistic
from pruning.model.batches import Batch
from pruning.model.decoder import Decoder


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
        """Make a layer's outputs the current inputs. Raises PruneError if an output is not finite.

        `last`: those of the last layer too, which few read.
        """
        if index == len(self._decoder) - 1 and not last:
            return
        for number, batch in enumerate(self._batches):
            hidden_1TH = layer(self._activations.get(number), **self._decoder.keywords(index, batch))
            # A sum shows NaN and infinity a hundred times faster; it may overflow, too.
            if not math.isfinite(hidden_1TH.sum().item()) and not bool(torch.isfinite(hidden_1TH).all()):
                raise PruneError(f"layer {index}: its output is not finite on calibration sequence {batch.order[0]}")
            self._activations.put(number, hidden_1TH)
