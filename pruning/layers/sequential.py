"""The layer-by-layer driver: each decoder layer is read, observed, pruned, written, run again and forgotten.

Statistics of a layer are gathered on inputs that the already pruned layers produced; one dense pass observes all its
Linear modules at once; then all of them are pruned and the layer is run again for the next one's inputs. Memory holds
one layer's weights, one layer's statistics, and the activations of the calibration tokens (or one batch of them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pruning.config import PruneConfig
from pruning.errors import PruneError
from pruning.layers.activations import Activations
from pruning.layers.capture import ColumnNorms, Hessian, Observer, Statistic
from pruning.layers.counts import count_true
from pruning.methods import masks, saliency, sparsegpt
from pruning.model.batches import Batch
from pruning.model.decoder import Decoder
from pruning.patterns import Pattern

# Called with each pruned matrix, in the checkpoint's dtype: (tensor name, weight_OI on the CPU).
Writer = Callable[[str, Tensor], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done to one matrix."""

    name: str
    pruned: int  # weights that the mask took
    dead_columns: int | None = None  # inputs that were zero on every calibration token; None: not measured
    damping: float | None = None  # SparseGPT: share of the mean diagonal that was added to it
    solver_dtype: str | None = None  # SparseGPT: what the Hessian was factored in


def propagate(
    decoder: Decoder, index: int, layer: nn.Module, activations: Activations, batches: Sequence[Batch]
) -> None:
    """Replace a layer's inputs by its outputs. Raises PruneError if an output is not finite."""
    for number, batch in enumerate(batches):
        hidden_1TH = layer(activations.get(number), **decoder.keywords(index, batch))
        # A sum shows NaN and infinity a hundred times faster; it may overflow, too.
        if not math.isfinite(hidden_1TH.sum().item()) and not bool(torch.isfinite(hidden_1TH).all()):
            raise PruneError(f"layer {index}: its output is not finite on calibration sequence {batch.order[0]}")
        activations.put(number, hidden_1TH)


def observe(
    decoder: Decoder,
    index: int,
    layer: nn.Module,
    activations: Activations,
    batches: Sequence[Batch],
    make: Callable[[int], Statistic],
) -> Observer:
    """One dense pass over every batch: the statistics of each distinct input of the layer's Linear modules."""
    observer = Observer(decoder.linears(index), make)
    for number, batch in enumerate(batches):
        observer.run(layer, activations.get(number), decoder.keywords(index, batch), batch)
    return observer


def prune_by_score(config: PruneConfig, weight_OI: Tensor, norm_sq_I: Tensor | None, pattern: Pattern) -> Tensor:
    """mask_OI of every method that only scores: magnitude, Wanda, RIA."""
    if config.method == "magnitude":
        score_OI = saliency.magnitude(weight_OI)
    else:
        assert norm_sq_I is not None
        score_OI = (saliency.wanda if config.method == "wanda" else saliency.ria)(weight_OI, norm_sq_I)
    return masks.select(score_OI, pattern, config.comparison)


class LayerPruner:
    """Prunes one loaded layer after another and hands every pruned matrix to the writer."""

    def __init__(self, config: PruneConfig, decoder: Decoder, patterns: Sequence[Pattern], write: Writer) -> None:
        """`patterns`: one per layer."""
        self._config = config
        self._decoder = decoder
        self._patterns = patterns
        self._write = write

    def _finish(self, index: int, name: str, weight_OI: Tensor) -> str:
        """Write one pruned matrix and put exactly what was written into the layer; returns its tensor name."""
        stored_OI = weight_OI.to(self._decoder.checkpoint_dtype(index, name))
        stored_OI = stored_OI + 0  # a weight that was or became -0.0 is +0.0
        self._decoder.replace(index, name, stored_OI)
        tensor = self._decoder.tensor_name(index, f"{name}.weight")
        self._write(tensor, stored_OI.cpu())
        return tensor

    def by_score(self, index: int, norms: Mapping[str, Tensor]) -> Iterator[Outcome]:
        """Magnitude, Wanda, RIA. `norms`: norm_sq_I by module; empty for magnitude."""
        for name, module in self._decoder.linears(index).items():
            weight_OI, norm_sq_I = module.weight.data, norms.get(name)
            mask_OI = prune_by_score(self._config, weight_OI, norm_sq_I, self._patterns[index])
            tensor = self._finish(index, name, masks.zeroed(weight_OI, mask_OI))
            dead = None if norm_sq_I is None else int((norm_sq_I == 0).sum())
            yield Outcome(tensor, count_true(mask_OI), dead)

    def by_solver(self, index: int, observer: Observer) -> Iterator[Outcome]:
        """SparseGPT, one Hessian and one column loop for all matrices that read the same input."""
        linears = self._decoder.linears(index)
        for leader, members in observer.groups.items():
            tensor = self._decoder.tensor_name(index, f"{leader}.weight")
            factor = sparsegpt.factorise(observer.statistics.pop(leader).result(), tensor)
            solved = sparsegpt.solve([linears[name].weight.data for name in members], factor, self._patterns[index])
            for name, (weight_OI, mask_OI) in zip(members, solved, strict=True):
                yield Outcome(
                    self._finish(index, name, weight_OI),
                    count_true(mask_OI),
                    int(factor.dead_I.sum()),
                    factor.damping,
                    factor.dtype,
                )


def column_norms(observer: Observer, where: str) -> dict[str, Tensor]:
    """norm_sq_I of every module. Raises PruneError if an input overflowed."""
    norms: dict[str, Tensor] = {}
    for leader, members in observer.groups.items():
        norm_sq_I = observer.statistics[leader].result()
        if not bool(torch.isfinite(norm_sq_I).all()):
            raise PruneError(f"{where}, input of {leader}: activations are not finite")
        norms |= dict.fromkeys(members, norm_sq_I)
    return norms


def prune_layers(
    config: PruneConfig,
    decoder: Decoder,
    patterns: Sequence[Pattern],
    batches: Sequence[Batch],
    activations: Activations | None,
    write: Writer,
    progress: Callable[[int, int], None],
) -> list[Outcome]:
    """Prune every layer; `activations` is None for magnitude, which looks at no text. Returns an outcome per matrix."""
    outcomes: list[Outcome] = []
    pruner = LayerPruner(config, decoder, patterns, write)
    sequences = sum(len(batch.lengths) for batch in batches)
    last = len(decoder) - 1

    def make(columns: int) -> Statistic:
        kind = Hessian if config.method == "sparsegpt" else ColumnNorms
        return kind(columns, sequences, decoder.device)

    with torch.no_grad():
        if activations is not None:
            for number, batch in enumerate(batches):
                activations.put(number, decoder.embed(batch))
        for index in range(len(decoder)):
            layer = decoder.load(index)
            if config.method == "magnitude" or activations is None:
                outcomes += pruner.by_score(index, {})
            else:
                observer = observe(decoder, index, layer, activations, batches, make)
                if config.method == "sparsegpt":
                    outcomes += pruner.by_solver(index, observer)
                else:
                    outcomes += pruner.by_score(index, column_norms(observer, f"layer {index}"))
                del observer
                if index < last:  # nobody reads the last layer's output
                    propagate(decoder, index, layer, activations, batches)
            decoder.release(index)
            progress(index + 1, len(decoder))
    return outcomes


def outlier_shares(decoder: Decoder, batches: Sequence[Batch], activations: Activations, times: float) -> list[float]:
    """Of every layer of the dense model: the share of Wanda scores above `times` the layer's mean score."""
    sequences = sum(len(batch.lengths) for batch in batches)
    shares: list[float] = []
    with torch.no_grad():
        for number, batch in enumerate(batches):
            activations.put(number, decoder.embed(batch))
        for index in range(len(decoder)):
            layer = decoder.load(index)
            observer = observe(
                decoder,
                index,
                layer,
                activations,
                batches,
                lambda columns: ColumnNorms(columns, sequences, decoder.device),
            )
            norms = column_norms(observer, f"layer {index}")
            weights = {name: module.weight.data for name, module in decoder.linears(index).items()}
            size = sum(weight.numel() for weight in weights.values())
            total = sum(saliency.wanda(weight, norms[name]).double().sum().item() for name, weight in weights.items())
            bar = times * total / size
            above = sum(int((saliency.wanda(weight, norms[name]) > bar).sum()) for name, weight in weights.items())
            shares.append(above / size)
            if index < len(decoder) - 1:
                propagate(decoder, index, layer, activations, batches)
            decoder.release(index)
    return shares
