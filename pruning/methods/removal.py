"""What a method is that takes whole parts out: layers, heads or channels. Matrices become smaller.

What stays is left as it is. Heads go in groups that share one key and value, and every layer loses the same number of
heads or channels, since config.json has one number for all. How the parts are found in a checkpoint: `structured`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pruning.patterns import Group, Removed, Unit, parse_removed, read_numbers, written

if TYPE_CHECKING:
    from torch import Tensor


class Removal(ABC):
    """One way to choose which parts go."""

    name: str
    help: str  # one line
    unit: Unit
    listed: bool = False  # the user lists them
    passes: float = 0  # cost, in forward passes over the calibration text
    group: Group = "matrix"  # means nothing here, and cannot be asked for
    takes_group: bool = False

    @property
    def needs_calibration(self) -> bool:
        return self.passes > 0

    def removed(self, pattern: str, sparsity: float | None) -> Removed:
        """What a job's fields describe. Raises ValueError naming field and value."""
        return parse_removed(self.unit, pattern, sparsity, listed=self.listed)

    def spelled(self, pattern: object) -> object:
        """The pattern of a job: one that was not given is the unit's name, and a list is spelled in one way."""
        if self.listed:
            return written(read_numbers(str(pattern or "")))
        return self.unit if pattern is None else pattern


class ScoredRemoval(Removal):
    """Takes the heads or channels whose scores are lowest in their layer.

    The score of a head or channel is the sum over its columns of the matrix that adds its result to the residual
    stream: `o_proj` of heads, `down_proj` of channels.
    """

    passes = 2

    @abstractmethod
    def score(self, weight_OI: Tensor, norm_sq_I: Tensor) -> Tensor:
        """score_I, of each column of such a matrix. `norm_sq_I`: see `Statistic.COLUMN_NORMS`."""
