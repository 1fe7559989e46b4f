"""How the sparsity that was asked is divided over layers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.errors import InputError
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
