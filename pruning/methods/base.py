"""A pruning method: `Method` sets weights to zero, `Removal` takes out whole
layers.

Shapes: O output rows, I input columns. Matrices that read the same input share one
statistic of it and are pruned together. Functions import torch where they work on
tensors: names and help are read without it.

A removal leaves the rest unchanged. `structured` finds layers in a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from evaluator.core.errors import JobError
from pruning.methods.patterns import (
    LAYERS,
    Group,
    Listed,
    NofM,
    Pattern,
    Removed,
    Share,
    format_ranges,
    read_numbers,
)

if TYPE_CHECKING:
    from torch import Tensor


class Statistic(Enum):
    """A statistic of a matrix's inputs over the calibration tokens."""

    COLUMN_NORMS = (
        "norm_sq_I: the squared norm of every input column, divided by the number of"
        " sequences"
    )
    HESSIAN = "hessian_II: 2 / N * sum of x x^T over the tokens of N sequences"


@dataclass(frozen=True, slots=True)
class Pruned:
    weight_OI: Tensor  # zero wherever the mask is True
    mask_OI: Tensor  # True: this weight goes
    # inputs that were zero on every calibration token; None: not measured
    dead_columns: int | None = None
    # share of the Hessian's mean diagonal that was added to it; None: no Hessian
    damping: float | None = None
    # what the Hessian was factored in; None: no Hessian
    solver_dtype: str | None = None


class _Named(ABC):
    name: str
    help: str  # one line
    statistic: Statistic | None = None  # of inputs; None: it looks at the weights alone
    # what a weight is compared with, unless a job says otherwise
    group: Group = "matrix"
    # False: what a weight is compared with is part of the method
    takes_group: bool = False
    passes: float = 0  # cost, in forward passes over the calibration text

    @property
    def needs_calibration(self) -> bool:
        return self.statistic is not None or self.passes > 0


class Method(_Named):
    """One way to choose which weights go, and perhaps to update those that stay."""

    takes_group = True

    def taken(self, rows: int, columns: int, pattern: Pattern, group: Group) -> int:
        """How many weights of a matrix go: rounded down in every comparison group."""
        if isinstance(pattern, NofM) or group == "row":
            return rows * pattern.count(columns)
        return pattern.count(rows * columns)

    @abstractmethod
    def prune(
        self,
        weights_OI: Iterable[Tensor],
        statistic: Tensor | None,
        pattern: Pattern,
        group: Group,
        where: str,
    ) -> Iterator[Pruned]:
        """Prune matrices that read the same input, in their order. `statistic`: of
        their input, if needed; it may be overwritten. Raises JobError naming `where`
        if it cannot be used."""


class ScoringMethod(Method):
    """A method that scores every weight: the lowest scores go, the other weights
    stay as they are."""

    @abstractmethod
    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        """score_OI, float32. `norm_sq_I`: see `Statistic.COLUMN_NORMS`; None unless
        the method needs it."""

    def prune(
        self,
        weights_OI: Iterable[Tensor],
        statistic: Tensor | None,
        pattern: Pattern,
        group: Group,
        where: str,
    ) -> Iterator[Pruned]:
        from pruning.methods import masks

        if statistic is not None and not bool(statistic.isfinite().all()):
            raise JobError(f"{where}: the activations that it reads are not finite")
        dead_columns = None if statistic is None else int((statistic == 0).sum())
        for weight_OI in weights_OI:
            mask_OI = masks.select(self.score(weight_OI, statistic), pattern, group)
            yield Pruned(masks.zeroed(weight_OI, mask_OI), mask_OI, dead_columns)


class Removal(_Named):
    """One way to choose which layers go."""

    listed: bool = False  # the user lists them

    def removed(self, pattern: str, sparsity: float | None) -> Removed:
        """The layers that the fields `pattern` and `sparsity` describe. Raises
        ValueError naming field and value."""
        if self.listed:
            if sparsity is not None:
                raise ValueError(
                    f"sparsity: {sparsity}: which layers go is said by pattern, for"
                    " example '20-25,28'"
                )
            return Listed(read_numbers(pattern))
        if pattern != LAYERS:
            raise ValueError(
                f"pattern: {pattern!r}: of {LAYERS} a share goes: give sparsity, for"
                " example 0.25"
            )
        if sparsity is None or not 0 < sparsity < 1:  # also refuses NaN
            given = "missing" if sparsity is None else sparsity
            raise ValueError(
                f"sparsity: {given}: give a share of {LAYERS} between 0 and 1"
            )
        return Share(float(sparsity))

    def spelled(self, pattern: object) -> object:
        """The pattern of a job: one that was not given is "layers", and a list is
        spelled in one way."""
        if self.listed:
            return format_ranges(read_numbers(str(pattern or "")))
        return LAYERS if pattern is None else pattern
