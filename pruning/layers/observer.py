"""What flows into the Linear modules of one decoder layer: statistics gathered by hooks, batch by batch.

Modules that are handed the same tensor (query, key and value; gate and up) are found by the tensor's identity and
share one statistic. The pass stops at the last module's input: no statistic needs its output.

A matrix of an expert sees the tokens that were sent to its expert; how many is counted. One that saw none is judged by
its weights alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from pruning.errors import PruneError
from pruning.layers.statistics import Gathered, indifferent
from pruning.methods.base import Statistic
from pruning.model.batches import Batch
from pruning.model.experts import Routed


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
        """Run the layer on one batch, as far as its statistics need. Raises PruneError if a module does not run."""
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
