"""Wanda-sp: heads or channels by the Wanda scores of the weights that carry them on.

An et al., Fluctuation-based Adaptive Structured Pruning for Large Language Models (arXiv:2312.11983), and its published
code (`prune_wanda_sp`): |W| * ||x|| of the output matrix, averaged over rows, summed over a head's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pruning.methods.base import ScoredRemoval

if TYPE_CHECKING:
    from torch import Tensor


class WandaSP(ScoredRemoval):
    """mean over rows of |W| * ||x||."""

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor) -> Tensor:
        return weight_OI.float().abs().mean(dim=0) * norm_sq_I.float().sqrt()


class Heads(WandaSP):
    """Query heads, with the key and value that they share."""

    name = "heads"
    help = "removes attention heads with their key and value, by Wanda scores in o_proj (Wanda-sp)"
    unit = "heads"


class Channels(WandaSP):
    """Channels of the MLP."""

    name = "channels"
    help = "removes channels of the MLP by Wanda scores in down_proj (Wanda-sp)"
    unit = "channels"
