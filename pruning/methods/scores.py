"""The methods that zero weights: magnitude, Wanda and RIA score every weight and
leave the others as they are.

Wanda: Sun et al., A Simple and Effective Pruning Approach for Large Language Models,
eq. 1. RIA, relative importance and activations: Zhang et al., Plug-and-Play, eqs. 3
and 5. SparseGPT (Frantar and Alistarh, 2023) updates the others; its arithmetic is
in `solver`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pruning.methods.base import Method, Pruned, ScoringMethod, Statistic
from pruning.methods.patterns import Group, NofM, Pattern

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
    help = (
        "removes, in each row, the weights whose size times the norm of their input is"
        " smallest"
    )
    statistic = Statistic.COLUMN_NORMS
    group = "row"
    passes = 2

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        assert norm_sq_I is not None
        return weight_OI.float().abs().mul_(norm_sq_I.float().sqrt())


class RIA(ScoringMethod):
    """(|W| / column sum + |W| / row sum) * ||x||^POWER; an all-zero row or column
    has importance 0, not 0 / 0."""

    name = "ria"
    help = (
        "removes the smallest weights relative to their row and column sums, times the"
        " root of the input's norm"
    )
    statistic = Statistic.COLUMN_NORMS
    passes = 2

    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        import torch

        assert norm_sq_I is not None
        size_OI = weight_OI.float().abs()
        smallest = torch.finfo(torch.float32).tiny
        column_1I = size_OI.sum(dim=0, keepdim=True).clamp_min(smallest)
        row_O1 = size_OI.sum(dim=1, keepdim=True).clamp_min(smallest)
        return (
            size_OI / column_1I + size_OI / row_O1
        ) * norm_sq_I.float().sqrt() ** POWER


BLOCK = 128  # columns whose weights are compared with each other, as published


class SparseGPT(Method):
    """Column by column, with the remaining weights updated to make up for those that
    went."""

    name = "sparsegpt"
    help = (
        "removes weights column by column, and changes the remaining weights to make up"
        " for them"
    )
    statistic = Statistic.HESSIAN
    takes_group = False  # always the rows and columns of one block
    passes = 4

    def taken(self, rows: int, columns: int, pattern: Pattern, group: Group) -> int:
        """Rounded down in every block of columns."""
        if isinstance(pattern, NofM):
            return super().taken(rows, columns, pattern, group)
        widths = [min(BLOCK, columns - start) for start in range(0, columns, BLOCK)]
        return sum(pattern.count(rows * width) for width in widths)

    def prune(
        self,
        weights_OI: Iterable[Tensor],
        statistic: Tensor | None,
        pattern: Pattern,
        group: Group,
        where: str,
    ) -> Iterator[Pruned]:
        from pruning.methods import solver

        assert statistic is not None
        factor = solver.factorise(statistic, where)
        del statistic  # it can be gigabytes
        dead_columns = int(factor.dead_I.sum())
        for weight_OI, mask_OI in solver.solve(
            list(weights_OI), factor, pattern, block=BLOCK
        ):
            yield Pruned(weight_OI, mask_OI, dead_columns, factor.damping, factor.dtype)
