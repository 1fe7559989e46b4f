"""What was asked of a matrix and what it holds: counts, and the check that they agree."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evaluator.errors import InputError
from pruning.config import Group, Method
from pruning.errors import PruneError
from pruning.methods.sparsegpt import BLOCK
from pruning.patterns import NofM, Pattern

_INTEGERS = {2: torch.int16, 4: torch.int32}  # by bytes


def check_divides(matrices: dict[str, tuple[int, int]], pattern: Pattern) -> None:
    """Raises InputError naming the first matrix whose columns an N:M pattern does not divide."""
    if not isinstance(pattern, NofM):
        return
    for name, (_, columns) in matrices.items():
        if columns % pattern.m:
            raise InputError(f"pattern: {pattern.n}:{pattern.m} does not divide the {columns} columns of matrix {name}")


def asked(rows: int, columns: int, pattern: Pattern, method: Method, group: Group) -> int:
    """How many weights of a matrix the pattern takes, rounded down in every comparison group."""
    if isinstance(pattern, NofM):
        return rows * pattern.count(columns)
    if method == "sparsegpt":
        widths = [min(BLOCK, columns - start) for start in range(0, columns, BLOCK)]
        return sum(pattern.count(rows * width) for width in widths)
    return rows * pattern.count(columns) if group == "row" else pattern.count(rows * columns)


def count_zeros(weight_OI: Tensor) -> int:
    """Weights that are zero, of either sign. A matrix on the CPU."""
    # By bits: numpy counts integers at the speed of memory, torch takes forty times as long for bfloat16.
    bits_OI = weight_OI.contiguous().view(_INTEGERS[weight_OI.element_size()]).numpy()
    return int(weight_OI.numel() - np.count_nonzero(bits_OI.view(f"u{weight_OI.element_size()}") << 1))


def count_true(mask_OI: Tensor) -> int:
    if mask_OI.device.type != "cpu":
        return int(mask_OI.sum())
    return int(np.count_nonzero(mask_OI.numpy()))


def check_counts(name: str, *, wanted: int, pruned: int, zeros: int) -> None:
    """Raises PruneError if a mask or a written matrix is not as sparse as asked (zeros may be more: dense ones)."""
    if pruned != wanted or zeros < wanted:
        raise PruneError(f"matrix {name}: {wanted} weights were to go, its mask took {pruned}, it holds {zeros} zeros")
