"""How the requested sparsity is divided over layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from evaluator.core.errors import InputError, JobError
from pruning.layers.flow import Flow
from pruning.layers.observer import Observer
from pruning.methods.base import Statistic
from pruning.methods.wanda import Wanda
from pruning.model.decoder import Decoder
from pruning.patterns import Unstructured

OWL_TIMES = 5.0  # an outlier's score is more than this many times the mean of its layer
OWL_SPREAD = 0.08  # a layer's ratio differs from the mean of all by less than twice this


def owl(shares: Sequence[float], ratio: float) -> list[Unstructured]:
    """A ratio per layer: layers with more outliers keep more, and the mean is `ratio` (Yin et al., OWL, section 3).

    `shares` are scaled to a spread of 2 * OWL_SPREAD and shifted so that their mean is the density 1 - ratio; all
    equal, they give the uniform allocation. Raises InputError if a ratio leaves [0, 1).
    """
    low, high = min(shares), max(shares)
    scale = 2 * OWL_SPREAD / (high - low) if high > low else 0.0
    scaled = [(share - low) * scale for share in shares]
    mean = sum(scaled) / len(scaled)
    ratios = [ratio - (value - mean) for value in scaled]
    for layer, value in enumerate(ratios):
        if not 0 <= value < 1:
            raise InputError(f"sparsity: {ratio} with allocation 'owl' gives layer {layer} the ratio {value:.4f}")
    return [Unstructured(value) for value in ratios]


def outlier_shares(decoder: Decoder, flow: Flow) -> list[float]:
    """Of each layer of the dense model: the share of Wanda scores above OWL_TIMES the layer's mean score.

    Raises JobError if activations are not finite.
    """
    shares: list[float] = []
    with torch.no_grad():
        flow.start()
        for index in range(len(decoder)):
            layer = decoder.load(index)
            shares.append(_outlier_share(decoder, index, flow.observe(index, layer, [Statistic.COLUMN_NORMS])))
            flow.advance(index, layer)
            decoder.release(index)
    return shares


def _outlier_share(decoder: Decoder, index: int, observer: Observer) -> float:
    norms: dict[str, Tensor] = {}
    for leader, members in observer.groups.items():
        norm_sq_I = observer.take(leader)[Statistic.COLUMN_NORMS]
        if not bool(torch.isfinite(norm_sq_I).all()):
            raise JobError(f"layer {index}, input of {leader}: activations are not finite")
        norms |= dict.fromkeys(members, norm_sq_I)
    weights = {name: module.weight.data for name, module in decoder.linears(index).items()}
    score = Wanda().score
    size = sum(weight_OI.numel() for weight_OI in weights.values())
    total = sum(score(weight_OI, norms[name]).double().sum().item() for name, weight_OI in weights.items())
    bar = OWL_TIMES * total / size
    above = sum(int((score(weight_OI, norms[name]) > bar).sum()) for name, weight_OI in weights.items())
    return above / size
