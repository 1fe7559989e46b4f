"""SparseGPT's arithmetic: prune column by column and let the columns to the right
make up for it.

Shapes: O output rows, I input columns, B columns of one block. The Hessian of a
row's squared output error is 2 / N * sum x x^T over calibration tokens, shared by
every row and by every matrix that reads the same input: those are solved together,
stacked by rows, each keeping its own mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evaluator.core.errors import JobError
from evaluator.core.liveness import HEARTBEAT
from pruning.methods import masks
from pruning.methods.patterns import NofM, Pattern

DAMPING = 0.01  # of the mean diagonal
_STEP = 16  # columns that are pruned before the rest of their block is updated
_SMALL = 256  # a triangular matrix up to this size is inverted by substitution
_LADDER = (
    (1.0, torch.float32),
    (10.0, torch.float32),
    (1.0, torch.float64),
    (10.0, torch.float64),
)


@dataclass(frozen=True, slots=True)
class Factor:
    """The upper Cholesky factor of the damped inverse Hessian, and how it was
    obtained."""

    upper_II: Tensor
    dead_I: Tensor  # True: the input column was zero on every calibration token
    damping: float  # share of the mean diagonal that was added
    dtype: str


def factorise(hessian_II: Tensor, name: str) -> Factor:
    """Factor a Hessian, which is changed where columns are dead.

    With rows and columns in reverse order its Cholesky factor, reversed back, is an
    upper U with H = U U^T; so H^-1 = R^T R for R = U^-1, and the factor is unique. The
    published route (factor, invert, factor again) does three times the work and rounds
    a matrix of squared condition. A matrix that is not positive definite is tried again
    with ten times the damping, then in float64. Raises JobError naming `name` if the
    Hessian is not finite or no step succeeds.
    """
    diagonal_I = hessian_II.diagonal()
    if not bool(torch.isfinite(hessian_II).all()):
        raise JobError(f"{name}: the Hessian of its inputs is not finite")
    dead_I = diagonal_I == 0
    diagonal_I[dead_I] = 1
    mean = diagonal_I.double().mean().item()
    for times, dtype in _LADDER:
        reversed_II = hessian_II.to(dtype).flip(0, 1)  # a copy
        reversed_II.diagonal().add_(DAMPING * times * mean)
        lower_II, failed = torch.linalg.cholesky_ex(reversed_II)
        del reversed_II
        if failed.item():
            continue
        upper_II = _inverse_of_upper(lower_II.flip(0, 1))
        if bool(torch.isfinite(upper_II).all()):
            return Factor(
                upper_II.float(),
                dead_I,
                DAMPING * times,
                str(dtype).removeprefix("torch."),
            )
    raise JobError(
        f"{name}: the Hessian of its inputs is not positive definite, even damped"
        " tenfold in float64"
    )


def _inverse_of_upper(upper_II: Tensor) -> Tensor:
    """Inverse of an upper triangular matrix, by halves: nearly all operations are
    matrix products."""
    size = len(upper_II)
    if size <= _SMALL:
        identity_II = torch.eye(size, dtype=upper_II.dtype, device=upper_II.device)
        solved_II: Tensor = torch.linalg.solve_triangular(
            upper_II, identity_II, upper=True
        )
        return solved_II
    half = size // 2
    inverse_II = torch.zeros_like(upper_II)
    first_II = _inverse_of_upper(upper_II[:half, :half])
    last_II = _inverse_of_upper(upper_II[half:, half:])
    inverse_II[:half, :half], inverse_II[half:, half:] = first_II, last_II
    inverse_II[:half, half:] = (first_II @ upper_II[:half, half:]).neg_() @ last_II
    return inverse_II


def solve(
    weights_OI: Sequence[Tensor], factor: Factor, pattern: Pattern, *, block: int
) -> list[tuple[Tensor, Tensor]]:
    """Prune matrices that read the same input; returns (weight_OI, mask_OI) of each, in
    the factor's dtype. `block`: the columns that are compared with each other and
    updated as one. Dead columns become zero whatever their mask.
    """
    rows = [len(weight) for weight in weights_OI]
    upper_II = factor.upper_II
    weight_OI = torch.cat([weight.to(upper_II.dtype) for weight in weights_OI])
    weight_OI[:, factor.dead_I] = 0
    mask_OI = torch.zeros_like(weight_OI, dtype=torch.bool)
    grouped = isinstance(pattern, NofM)
    if isinstance(pattern, NofM):  # a block must hold whole groups
        block = max(block // pattern.m, 1) * pattern.m
    columns = weight_OI.shape[1]
    for start in range(0, columns, block):
        end = min(start + block, columns)
        # Columns are walked one at a time: transposed, each is contiguous.
        weight_BO = weight_OI[:, start:end].T.contiguous()
        upper_BB = upper_II[start:end, start:end]
        if grouped:
            mask_BO = torch.zeros_like(weight_BO, dtype=torch.bool)
        else:
            # W^2 / d^2, d the diagonal of the inverse Hessian's upper Cholesky factor
            # (Frantar and Alistarh, eq. 5). The lowest scores of a block go, over all
            # rows of each of the stacked matrices.
            score_OB = weight_OI[:, start:end] ** 2 / upper_BB.diagonal() ** 2
            parts = [
                masks.select(part_OB, pattern, "matrix")
                for part_OB in torch.split(score_OB, rows)
            ]
            mask_BO = torch.cat(parts).T.contiguous()
        error_BO = _walk(weight_BO, mask_BO, upper_BB, pattern if grouped else None)
        weight_OI[:, start:end] = weight_BO.T
        mask_OI[:, start:end] = mask_BO.T
        weight_OI[:, end:].addmm_(error_BO.T, upper_II[start:end, end:], alpha=-1)
        HEARTBEAT.beat()
    return list(
        zip(torch.split(weight_OI, rows), torch.split(mask_OI, rows), strict=True)
    )


def _walk(
    weight_BO: Tensor, mask_BO: Tensor, upper_BB: Tensor, pattern: Pattern | None
) -> Tensor:
    """Prune a block in place, left to right, N:M groups from updated weights;
    returns error_BO for later blocks."""
    error_BO = torch.empty_like(weight_BO)
    diagonal_B = upper_BB.diagonal()
    step = (
        _STEP
        if not isinstance(pattern, NofM)
        else max(_STEP // pattern.m, 1) * pattern.m
    )
    for start in range(0, len(weight_BO), step):
        # Each column updates the few next ones; one product then updates the rest of
        # the block.
        end = min(start + step, len(weight_BO))
        for column in range(start, end):
            if isinstance(pattern, NofM) and column % pattern.m == 0:
                group = slice(column, column + pattern.m)
                score_OM = weight_BO[group].T ** 2 / diagonal_B[group] ** 2
                mask_BO[group] = masks.lowest_of_groups(
                    score_OM, pattern.n, pattern.m
                ).T
            removed_O = (
                weight_BO[column].masked_fill(~mask_BO[column], 0) / diagonal_B[column]
            )
            weight_BO[column + 1 : end].addr_(
                upper_BB[column, column + 1 : end], removed_O, alpha=-1
            )
            error_BO[column] = removed_O
        weight_BO[end:].addmm_(
            upper_BB[start:end, end:].T, error_BO[start:end], alpha=-1
        )
    weight_BO.masked_fill_(mask_BO, 0)
    return error_BO
