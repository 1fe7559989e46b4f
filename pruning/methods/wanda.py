"""Wanda (Sun et al., A Simple and Effective Pruning Approach for Large Language Models, eq. 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pruning.methods.base import ScoringMethod, Statistic

if TYPE_CHECKING:
    from torch import Tensor


class Wanda(ScoringMethod):
    """|W| * ||x||, compared within a row, as published."""

    name = "wanda"
    help = "removes weights by weight times the norm of the input, within each row"
    statistic = Statistic.COLUMN_NORMS
    group = "row"
    passes = 2

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        assert norm_sq_I is not None
        return weight_OI.float().abs().mul_(norm_sq_I.float().sqrt())
