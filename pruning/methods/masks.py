"""Exact masks from scores, and counts of zeros. Pure. True marks a weight that goes.

Every mask equals that of a stable ascending sort: the lowest scores go, and their
number is exact. Among equal scores the lowest column goes first (in a whole matrix:
the lowest row, then column). Selection finds the k-th smallest score and resolves
its ties in linear time; the published code sorts in O(n log n)."""

import numpy as np
import torch
from torch import Tensor

from evaluator.core.errors import JobError
from pruning.methods.patterns import Group, NofM, Pattern

# fewer leave most of a GPU idle: its `kthvalue` gives each to one multiprocessor
_FEW_ROWS = 64
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
_PAIRWISE_M = 8  # up to this M, comparing all pairs of a group beats sorting it


def lowest_of_rows(score_OI: Tensor, count: int) -> Tensor:
    """mask_OI with exactly `count` True in every row."""
    if count <= 0:
        return torch.zeros_like(score_OI, dtype=torch.bool)
    if count >= score_OI.shape[1]:
        return torch.ones_like(score_OI, dtype=torch.bool)
    threshold_O1 = _kth_lowest(score_OI, count)
    mask_OI = score_OI <= threshold_O1
    surplus_O = mask_OI.view(torch.uint8).sum(dim=1, dtype=torch.int32) - count
    tied_rows = surplus_O.nonzero()[:, 0]
    if len(tied_rows):  # rows where the threshold is tied: keep its last columns
        equal_RI = score_OI[tied_rows] == threshold_O1[tied_rows]
        allowed_R1 = equal_RI.sum(dim=1, keepdim=True) - surplus_O[tied_rows, None]
        mask_OI[tied_rows] &= ~(
            equal_RI & (equal_RI.cumsum(dim=1, dtype=torch.int32) > allowed_R1)
        )
    return mask_OI


def _kth_lowest(score_OI: Tensor, count: int) -> Tensor:
    """The `count`-th lowest score of each row, (O, 1)."""
    if score_OI.device.type != "cpu":
        if len(score_OI) >= _FEW_ROWS:
            return score_OI.kthvalue(count, dim=1, keepdim=True).values
        return score_OI.sort(dim=1).values[:, count - 1 : count]
    # numpy's selection is vectorised where torch's is not: ten times faster with
    # AVX-512.
    return torch.from_numpy(
        np.partition(score_OI.numpy(), count - 1, axis=1)[:, count - 1 : count].copy()
    )


def zeroed(weight_OI: Tensor, mask_OI: Tensor) -> Tensor:
    """A copy of the weights that is +0.0 where the mask is True."""
    if weight_OI.device.type != "cpu":
        return weight_OI.masked_fill(mask_OI, 0)
    # As integers: to fill by a random mask takes a CPU six times as long, and a product
    # of floats would leave -0.0.
    bits_OI = weight_OI.view(_INTEGERS[weight_OI.element_size()])
    return (bits_OI * ~mask_OI).view(weight_OI.dtype)


def lowest_of_groups(score_OI: Tensor, n: int, m: int) -> Tensor:
    """mask_OI with exactly `n` True in every `m` consecutive columns of a row; `m`
    must divide the columns."""
    rows, columns = score_OI.shape
    assert columns % m == 0, (columns, m)
    score_OGM = score_OI.reshape(rows, columns // m, m)
    if m > _PAIRWISE_M:
        order_OGM = score_OGM.argsort(dim=2, stable=True)[..., :n]
        return (
            torch.zeros_like(score_OGM, dtype=torch.bool)
            .scatter_(2, order_OGM, True)
            .view(rows, columns)
        )
    mask_OGM = torch.empty_like(score_OGM, dtype=torch.bool)
    for column in range(m):  # the rank of a column: how many of its group go before it
        own = score_OGM[..., column]
        rank = torch.zeros_like(own, dtype=torch.int16)
        for other in range(m):
            if other != column:
                rank += (
                    score_OGM[..., other] <= own
                    if other < column
                    else score_OGM[..., other] < own
                )
        mask_OGM[..., column] = rank < n
    return mask_OGM.view(rows, columns)


def select(score_OI: Tensor, pattern: Pattern, group: Group) -> Tensor:
    """mask_OI of the pattern; a ratio counts within `group`."""
    if isinstance(pattern, NofM):
        return lowest_of_groups(score_OI, pattern.n, pattern.m)
    if group == "row":
        return lowest_of_rows(score_OI, pattern.count(score_OI.shape[1]))
    return lowest_of_rows(
        score_OI.reshape(1, -1), pattern.count(score_OI.numel())
    ).view(score_OI.shape)


def count_zeros(weight_OI: Tensor) -> int:
    """Weights that are zero, of either sign. A matrix on the CPU."""
    # By bits: numpy counts integers at the speed of memory, torch takes forty times as
    # long for bfloat16.
    bits_OI = weight_OI.contiguous().view(_INTEGERS[weight_OI.element_size()]).numpy()
    return int(
        weight_OI.numel()
        - np.count_nonzero(bits_OI.view(f"u{weight_OI.element_size()}") << 1)
    )


def check_counts(name: str, mask_OI: Tensor, *, requested: int, zeros: int) -> None:
    """Raises JobError if a mask took another number than requested or fewer zeros
    (dense ones may add) were written."""
    on_cpu = mask_OI.device.type == "cpu"  # where numpy counts faster
    pruned = int(np.count_nonzero(mask_OI.numpy()) if on_cpu else mask_OI.sum())
    if pruned != requested or zeros < requested:
        raise JobError(
            f"matrix {name}: {requested} weights should be pruned; the mask took"
            f" {pruned} and {zeros} are zero"
        )
