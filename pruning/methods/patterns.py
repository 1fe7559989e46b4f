"""Patterns: a share of a matrix's weights, N of every M neighbours in a row, or
whole layers of a model."""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

UNSTRUCTURED = "unstructured"
LAYERS = "layers"  # the pattern of a share of them
# what a ratio is taken of, and what a weight is compared with
Group = Literal["row", "matrix"]
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
        return self.n / self.m

    def count(self, size: int) -> int:
        """How many of `size` weights of a row go; only whole groups count."""
        return size // self.m * self.n


Pattern = Unstructured | NofM


@dataclass(frozen=True, slots=True)
class Share:
    """The share `ratio` in (0, 1) of a model's layers is taken out."""

    ratio: float

    def count(self, layers: int) -> int:
        """How many of `layers` go: rounded down, and never all."""
        # 0.29 * 100 is a little less than 29
        return min(int(layers * self.ratio + 1e-9), layers - 1)


@dataclass(frozen=True, slots=True)
class Listed:
    layers: tuple[int, ...]


Removed = Share | Listed


def read_numbers(text: str) -> tuple[int, ...]:
    """The numbers of a list such as "20-25,28". Raises ValueError for another text,
    and for a number named twice."""
    if not _LIST.fullmatch(text):
        raise ValueError(
            f"pattern: {text!r} is no list of layers, for example '20-25,28'"
        )
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
        if last and int(last) < int(first):
            raise ValueError(f"pattern: {text!r}: {part} ends before it begins")
    numbers.sort()
    if twice := [
        number
        for number, following in itertools.pairwise(numbers)
        if number == following
    ]:
        raise ValueError(f"pattern: {text!r} names {twice[0]} twice")
    return tuple(numbers)


def format_ranges(numbers: Iterable[int]) -> str:
    """Rising numbers as `read_numbers` reads them, runs as a range."""
    parts = []
    for _, run in itertools.groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run_of = [number for _, number in run]
        parts.append(
            str(run_of[0]) if len(run_of) == 1 else f"{run_of[0]}-{run_of[-1]}"
        )
    return ",".join(parts)


def parse(pattern: str, sparsity: float | None) -> Pattern:
    """A configuration's pattern. Raises ValueError, naming field and value, unless
    exactly one of both is given."""
    if pattern == UNSTRUCTURED:
        if sparsity is None:
            raise ValueError(
                "sparsity: must be given (a ratio in [0, 1)) unless pattern is N:M"
            )
        if not 0 <= sparsity < 1:  # also refuses NaN
            raise ValueError(f"sparsity: {sparsity} is outside [0, 1)")
        return Unstructured(float(sparsity))
    match = re.fullmatch(r"(\d{1,4}):(\d{1,4})", pattern)
    if match is None:
        raise ValueError(
            f"pattern: {pattern!r} is neither {UNSTRUCTURED!r} nor N:M, for example"
            " '2:4'"
        )
    n, m = int(match[1]), int(match[2])
    if not 0 <= n <= m or m == 0:
        raise ValueError(f"pattern: {pattern!r} must have 0 <= N <= M and M >= 1")
    if sparsity is not None:
        raise ValueError(
            f"sparsity: {sparsity} cannot be combined with pattern {pattern!r}, which"
            " fixes it"
        )
    return NofM(n, m)
