"""A pruning method and its patterns: a share of a matrix's weights, N of every M neighbours in a row, or whole parts.

`Method` sets weights to zero, `Removal` takes out whole layers, heads or channels.

Shapes: O output rows, I input columns. Matrices that read the same input share one statistic of it and are pruned
together. Functions import torch where they work on tensors: names and help are read without it.

A removal leaves the rest unchanged. Heads are removed in groups that share one key and value. Every layer loses the
same number of heads or channels, since config.json has one number for all. `structured` finds parts in a checkpoint.
"""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal

from evaluator.core.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor

UNSTRUCTURED = "unstructured"
Group = Literal["row", "matrix"]  # what a ratio is taken of, and what a weight is compared with
Unit = Literal["layers", "heads", "channels"]  # what is taken out whole; heads go with those that share key and value
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*")


@dataclass(frozen=True, slots=True)
class Unstructured:
    """The share `ratio` in [0, 1) of the weights of every comparison group."""

    ratio: float

    def count(self, size: int) -> int:
        """How many of `size` weights go: rounded down, as the published code rounds."""
        return int(size * self.ratio)


@dataclass(frozen=True, slots=True)
class NofM:
    """`n` of every `m` consecutive columns of a row are zero ("2:4": 2 of 4)."""

    n: int
    m: int

    @property
    def ratio(self) -> float:
        """The share of zeros."""
        return self.n / self.m

    def count(self, size: int) -> int:
        """How many of `size` weights of a row go; only whole groups count."""
        return size // self.m * self.n


Pattern = Unstructured | NofM


@dataclass(frozen=True, slots=True)
class Share:
    """The share `ratio` in (0, 1) of a model's layers, or of each layer's heads or channels, is taken out."""

    unit: Unit
    ratio: float

    def count(self, parts: int, step: int = 1) -> int:
        """How many of `parts` go: rounded down to a multiple of `step`, and never all."""
        return min(int(parts * self.ratio + 1e-9), parts - 1) // step * step  # 0.29 * 100 is a little less than 29


@dataclass(frozen=True, slots=True)
class Listed:
    """These layers are taken out."""

    layers: tuple[int, ...]


Removed = Share | Listed


def read_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list such as "20-25,28". Raises ValueError for another text, and for a number named twice."""
    if not _LIST.fullmatch(text):
        raise ValueError(f"pattern: {text!r} is no list of layers, for example '20-25,28'")
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
        if last and int(last) < int(first):
            raise ValueError(f"pattern: {text!r}: {part} ends before it begins")
    numbers.sort()
    if twice := [number for number, following in itertools.pairwise(numbers) if number == following]:
        raise ValueError(f"pattern: {text!r} names {twice[0]} twice")
    return tuple(numbers)


def written(numbers: Iterable[int]) -> str:
    """Rising numbers as `read_numbers` reads them, runs as a range."""
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run_of = [number for _, number in run]
        parts.append(str(run_of[0]) if len(run_of) == 1 else f"{run_of[0]}-{run_of[-1]}")
    return ",".join(parts)


def parse(pattern: str, sparsity: float | None) -> Pattern:
    """The pattern that the fields `pattern` and `sparsity` of a configuration describe.

    Raises ValueError, naming field and value, unless exactly one of a ratio and an N:M pattern is given.
    """
    if pattern == UNSTRUCTURED:
        if sparsity is None:
            raise ValueError("sparsity: must be given (a ratio in [0, 1)) unless pattern is N:M")
        if not 0 <= sparsity < 1:  # also refuses NaN
            raise ValueError(f"sparsity: {sparsity} is outside [0, 1)")
        return Unstructured(float(sparsity))
    match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", pattern)
    if match is None:
        raise ValueError(f"pattern: {pattern!r} is neither {UNSTRUCTURED!r} nor N:M, for example '2:4'")
    n, m = int(match[1]), int(match[2])
    if not 0 <= n <= m or m == 0:
        raise ValueError(f"pattern: {pattern!r} must have 0 <= N <= M and M >= 1")
    if sparsity is not None:
        raise ValueError(f"sparsity: {sparsity} cannot be combined with pattern {pattern!r}, which fixes it")
    return NofM(n, m)


class Statistic(Enum):
    """A statistic of a matrix's inputs over the calibration tokens."""

    COLUMN_NORMS = "norm_sq_I: the squared norm of every input column, divided by the number of sequences"
    HESSIAN = "hessian_II: 2 / N * sum of x x^T over the tokens of N sequences"


@dataclass(frozen=True, slots=True)
class Pruned:
    """One pruned matrix."""

    weight_OI: Tensor  # zero wherever the mask is True
    mask_OI: Tensor  # True: this weight goes
    dead_columns: int | None = None  # inputs that were zero on every calibration token; None: not measured
    damping: float | None = None  # share of the Hessian's mean diagonal that was added to it; None: no Hessian
    solver_dtype: str | None = None  # what the Hessian was factored in; None: no Hessian


class _Named(ABC):
    name: str
    help: str  # one line
    statistic: Statistic | None = None  # of inputs; None: it looks at the weights alone
    group: Group = "matrix"  # what a weight is compared with, unless a job says otherwise
    takes_group: bool = False  # False: what a weight is compared with is part of the method
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
        self, weights_OI: Iterable[Tensor], statistic: Tensor | None, pattern: Pattern, group: Group, where: str
    ) -> Iterator[Pruned]:
        """Prune matrices that read the same input, in their order.

        `statistic` is that of their input, or None for a method that needs none; it may be overwritten. Raises
        JobError naming `where` if it cannot be used.
        """


class ScoringMethod(Method):
    """A method that scores every weight: the lowest scores go, the other weights stay as they are."""

    @abstractmethod
    def score(self, weight_OI: Tensor, norm_sq_I: Tensor | None) -> Tensor:
        """score_OI, float32. `norm_sq_I`: see `Statistic.COLUMN_NORMS`; None unless the method needs it."""

    def prune(
        self, weights_OI: Iterable[Tensor], statistic: Tensor | None, pattern: Pattern, group: Group, where: str
    ) -> Iterator[Pruned]:
        from pruning.methods import masks

        if statistic is not None and not bool(statistic.isfinite().all()):
            raise JobError(f"{where}: the activations that it reads are not finite")
        dead_columns = None if statistic is None else int((statistic == 0).sum())
        for weight_OI in weights_OI:
            mask_OI = masks.select(self.score(weight_OI, statistic), pattern, group)
            yield Pruned(masks.zeroed(weight_OI, mask_OI), mask_OI, dead_columns)


class Removal(_Named):
    """One way to choose which parts go."""

    unit: Unit
    listed: bool = False  # the user lists them

    def removed(self, pattern: str, sparsity: float | None) -> Removed:
        """The parts that the fields `pattern` and `sparsity` describe. Raises ValueError naming field and value."""
        if self.listed:
            if sparsity is not None:
                raise ValueError(f"sparsity: {sparsity}: which layers go is said by pattern, for example '20-25,28'")
            return Listed(read_numbers(pattern))
        if pattern != self.unit:
            raise ValueError(f"pattern: {pattern!r}: of {self.unit} a share goes: give sparsity, for example 0.25")
        if sparsity is None or not 0 < sparsity < 1:  # also refuses NaN
            raise ValueError(f"sparsity: {sparsity} is not a share of {self.unit} between 0 and 1")
        return Share(self.unit, float(sparsity))

    def spelled(self, pattern: object) -> object:
        """The pattern of a job: one that was not given is the unit's name, and a list is spelled in one way."""
        if self.listed:
            return written(read_numbers(str(pattern or "")))
        return self.unit if pattern is None else pattern
