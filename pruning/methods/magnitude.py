"""Magnitude pruning: the smallest weights go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pruning.methods.base import ScoringMethod

if TYPE_CHECKING:
    from torch import Tensor


class Magnitude(ScoringMethod):
    """|W|."""

    name = "magnitude"
    help = "removes the smallest weights of each matrix; needs no calibration text"

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        return weight_OI.float().abs()
