"""SparseGPT (Frantar and Alistarh, 2023); the arithmetic is in `solver`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pruning.methods.base import Method, Pruned, Statistic
from pruning.methods.patterns import Group, NofM, Pattern

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128  # columns whose weights are compared with each other, as published


class SparseGPT(Method):
    """Column by column, with the remaining weights updated to make up for those that went."""

    name = "sparsegpt"
    help = "removes weights column by column, and changes the remaining weights to make up for them"
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
        self, weights_OI: Iterable[Tensor], statistic: Tensor | None, pattern: Pattern, group: Group, where: str
    ) -> Iterator[Pruned]:
        from pruning.methods import solver

        assert statistic is not None
        factor = solver.factorise(statistic, where)
        del statistic  # it can be gigabytes
        dead_columns = int(factor.dead_I.sum())
        for weight_OI, mask_OI in solver.solve(list(weights_OI), factor, pattern, block=BLOCK):
            yield Pruned(weight_OI, mask_OI, dead_columns, factor.damping, factor.dtype)
