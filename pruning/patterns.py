"""Which weights of a matrix may go: any share of them, or N of every M neighbours in a row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

UNSTRUCTURED = "unstructured"
Group = Literal["row", "matrix"]  # what a ratio is taken of, and what a weight is compared with


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
