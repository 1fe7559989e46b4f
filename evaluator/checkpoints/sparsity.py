"""How sparse a checkpoint's pruned matrices are: their zeros are counted in the
files, whatever a manifest states."""

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from evaluator.checkpoints.matrices import Matrix, opened
from evaluator.checkpoints.tensors import Tensor
from evaluator.core.liveness import HEARTBEAT

# weights that are dequantised: as many as torch leaves to one thread
_AT_ONCE = 1 << 15


def measure(
    tensors: Iterable[Tensor], names: Sequence[str], pattern: str
) -> tuple[float, str] | None:
    """Zeros / weights over the matrices `names` ("....weight"), dequantised, and their
    pattern: an N:M `pattern` that does not hold becomes "unstructured". None where
    there is no matrix, one is missing, or its layout is not known.
    """
    grouped = re.fullmatch(r"(\d+):([1-9]\d*)", pattern)
    zeros = weights = 0
    with opened({each.file for each in tensors}) as slices:
        try:
            for name in names:
                for zero_RI in _zeros(Matrix(slices, name.removesuffix(".weight"))):
                    zeros += int(np.count_nonzero(zero_RI.numpy()))
                    weights += zero_RI.numel()
                    if grouped and not groups_hold(
                        zero_RI, int(grouped[1]), int(grouped[2])
                    ):
                        pattern = "unstructured"
        except (
            ArithmeticError,
            LookupError,
            RuntimeError,
            ValueError,
        ):  # missing, or its parts do not fit
            return None
    return (zeros / weights, pattern) if weights else None


def _zeros(matrix: Matrix) -> Iterator[torch.Tensor]:
    """Which weights are zero, some rows at a time. Raises LookupError for a layout
    that is not known."""
    rows, columns = matrix.shape
    step = max(1, _AT_ONCE // columns)
    for first in range(0, rows, step):
        HEARTBEAT.beat()
        weight_RI = matrix.rows(first, min(first + step, rows))
        if weight_RI is None:
            raise LookupError
        yield weight_RI == 0


def groups_hold(zero_OI: torch.Tensor, n: int, m: int) -> bool:
    """Whether every `m` consecutive columns of every row have at least `n` zeros."""
    rows, columns = zero_OI.shape
    return columns % m == 0 and bool(
        (zero_OI.reshape(rows, columns // m, m).sum(dim=2) >= n).all()
    )
