"""How many zeros a matrix holds, and the check that they are as many as requested."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from evaluator.core.errors import InputError
from pruning.errors import PruneError
from pruning.patterns import NofM, Pattern

_INTEGERS = {2: torch.int16, 4: torch.int32}  # by bytes


def check_divides(matrices: dict[str, tuple[int, int]], pattern: Pattern) -> None:
    """Raises InputError naming the first matrix whose columns an N:M pattern does not divide."""
    if not isinstance(pattern, NofM):
        return
    for name, (_, columns) in matrices.items():
        if columns % pattern.m:
            raise InputError(f"pattern: {pattern.n}:{pattern.m} does not divide the {columns} columns of matrix {name}")


def count_zeros(weight_OI: Tensor) -> int:
    """Weights that are zero, of either sign. A matrix on the CPU."""
    # By bits: numpy counts integers at the speed of memory, torch takes forty times as long for bfloat16.
    bits_OI = weight_OI.contiguous().view(_INTEGERS[weight_OI.element_size()]).numpy()
    return int(weight_OI.numel() - np.count_nonzero(bits_OI.view(f"u{weight_OI.element_size()}") << 1))


def count_true(mask_OI: Tensor) -> int:
    """Weights that a mask takes."""
    if mask_OI.device.type != "cpu":
        return int(mask_OI.sum())
    return int(np.count_nonzero(mask_OI.numpy()))


def check_counts(name: str, *, requested: int, pruned: int, zeros: int) -> None:
    """Raises PruneError if a mask took another number than requested, or a written matrix has fewer zeros.

    It may have more: dense weights that were zero and that no mask took.
    """
    if pruned != requested or zeros < requested:
        raise PruneError(
            f"matrix {name}: {requested} weights should be pruned; the mask took {pruned} and {zeros} are zero"
        )
