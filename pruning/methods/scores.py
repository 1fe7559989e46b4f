"""The methods that score every weight and leave the others as they are: magnitude, Wanda and RIA.

Wanda: Sun et al., A Simple and Effective Pruning Approach for Large Language Models, eq. 1. RIA, relative importance
and activations: Zhang et al., Plug-and-Play, eqs. 3 and 5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pruning.methods.base import ScoringMethod, Statistic

if TYPE_CHECKING:
    from torch import Tensor

POWER = 0.5  # of the input's norm in RIA, as published


class Magnitude(ScoringMethod):
    """|W|: the smallest weights go."""

    name = "magnitude"
    help = "removes the smallest weights of each matrix; needs no calibration text"

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        return weight_OI.float().abs()


class Wanda(ScoringMethod):
    """|W| * ||x||, compared within a row, as published."""

    name = "wanda"
    help = "removes, in each row, the weights whose size times the norm of their input is smallest"
    statistic = Statistic.COLUMN_NORMS
    group = "row"
    passes = 2

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        assert norm_sq_I is not None
        return weight_OI.float().abs().mul_(norm_sq_I.float().sqrt())


class RIA(ScoringMethod):
    """(|W| / column sum + |W| / row sum) * ||x||^POWER; an all-zero row or column has importance 0, not 0 / 0."""

    name = "ria"
    help = "removes the smallest weights relative to their row and column sums, times the root of the input's norm"
    statistic = Statistic.COLUMN_NORMS
    passes = 2

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        import torch

        assert norm_sq_I is not None
        size_OI = weight_OI.float().abs()
        smallest = torch.finfo(torch.float32).tiny
        column_1I = size_OI.sum(dim=0, keepdim=True).clamp_min(smallest)
        row_O1 = size_OI.sum(dim=1, keepdim=True).clamp_min(smallest)
        return (size_OI / column_1I + size_OI / row_O1) * norm_sq_I.float().sqrt() ** POWER
