"""Repair after pruning: the weights that stay are fitted anew, so that outputs on
the calibration text change least.

A row w of a pruned matrix had the dense weights d. Its repair is the w, with zeros
wherever its mask has them, of the least

    (d - w) A (d - w)^T,    A = H + damping.

H is the Hessian of a row's squared output error on the inputs that the layers before
it produce as they are now. It is damped as SparseGPT damps it: where the text says
nothing, the dense weights count. Each row has its own mask, hence its own normal
equations. Conjugate gradients over the kept weights solve those of many rows at once:
a step is one product with H. (Boza, Fast and Effective Weight Update for Pruned Large
Language Models, 2024, is the same least squares by ADMM.)

Shapes: O output rows, I input columns."""

from typing import Any

import torch
from torch import Tensor

from evaluator.core.errors import JobError
from evaluator.core.liveness import HEARTBEAT
from pruning.methods.base import Pruned
from pruning.methods.solver import DAMPING

STEPS = 64  # at most
# of the gradient's first length, in the diagonal's norm: where a row is done
TOLERANCE = 1e-3
# that are solved together: on a CPU few enough that they stay in the cache
_ROWS_CPU, _ROWS_CUDA = 512, 8192


class LeastSquares:
    """The repair of matrices that read one input."""

    def __init__(self, hessian_II: Tensor, where: str) -> None:
        """Raises JobError naming `where` if the Hessian is not finite."""
        if not bool(torch.isfinite(hessian_II).all()):
            raise JobError(f"{where}: the Hessian of its inputs is not finite")
        diagonal_I = hessian_II.diagonal()
        self._hessian_II = hessian_II
        # weights of dead columns stay as pruning left them
        self._live_I = diagonal_I > 0
        self._damping = 0.0
        if bool(self._live_I.any()):
            mean = diagonal_I[self._live_I].double().mean().item()
            self._damping = DAMPING * mean
        self._scale_I = torch.where(self._live_I, 1 / (diagonal_I + self._damping), 0)

    def repair(
        self, pruned: Pruned, dense_OI: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, dict[str, Any]]:
        """Fit what the mask leaves and round it to `dtype`; a row whose rounded
        error would not be less stays. Also what a `MatrixRecord` says of it."""
        parts: list[Tensor] = []
        totals, most = torch.zeros(3, dtype=torch.float64), 0
        rows = _ROWS_CUDA if dense_OI.is_cuda else _ROWS_CPU
        for start in range(0, len(dense_OI), rows):
            chunk = slice(start, start + rows)
            target_OI = dense_OI[chunk].float()
            weight_OI = pruned.weight_OI[chunk]
            kept_OI = self._live_I & ~pruned.mask_OI[chunk]
            fitted_OI, steps = self._fit(weight_OI.float(), target_OI, kept_OI)
            before_OI, after_OI = weight_OI.to(dtype), fitted_OI.to(dtype)
            before_O = self._error(target_OI - before_OI.float())
            after_O = self._error(target_OI - after_OI.float())
            better_O = after_O < before_O
            parts.append(torch.where(better_O[:, None], after_OI, before_OI))
            least_O = torch.minimum(before_O, after_O)
            errors = self._error(target_OI), before_O, least_O
            totals += torch.stack([error_O.double().sum() for error_O in errors]).cpu()
            most = max(most, steps)
        whole, before, after = totals.tolist()
        facts = {
            "pruned_error": before / whole if whole else 0.0,
            "repaired_error": after / whole if whole else 0.0,
            "repair_steps": most,  # of the rows that took most
        }
        return torch.cat(parts), facts

    def _error(self, change_OI: Tensor) -> Tensor:
        """The squared output error of each row, (O,), up to a factor, without the
        damping."""
        return (self._times(change_OI, damping=0.0) * change_OI).sum(dim=1)

    def _times(self, left_OI: Tensor, damping: float) -> Tensor:
        product_OI = left_OI @ self._hessian_II
        return product_OI.add_(left_OI, alpha=damping) if damping else product_OI

    def _fit(
        self, weight_OI: Tensor, dense_OI: Tensor, kept_OI: Tensor
    ) -> tuple[Tensor, int]:
        """Preconditioned conjugate gradients from the pruned weights on; also how
        many steps were taken."""
        weight_OI = weight_OI.clone()
        residual_OI = self._times(dense_OI - weight_OI, self._damping).mul_(kept_OI)
        direction_OI = residual_OI * self._scale_I
        size_O1 = (residual_OI * direction_OI).sum(dim=1, keepdim=True)
        enough_O1 = size_O1 * TOLERANCE**2
        active_O1 = size_O1 > enough_O1
        for step in range(STEPS):
            if not bool(active_O1.any()):
                return weight_OI, step
            HEARTBEAT.beat()
            curved_OI = self._times(direction_OI, self._damping).mul_(kept_OI)
            curvature_O1 = (direction_OI * curved_OI).sum(dim=1, keepdim=True)
            length_O1 = torch.where(active_O1, size_O1 / curvature_O1, 0)
            weight_OI.addcmul_(direction_OI, length_O1)
            residual_OI.addcmul_(curved_OI, length_O1, value=-1)
            scaled_OI = residual_OI * self._scale_I
            next_O1 = (residual_OI * scaled_OI).sum(dim=1, keepdim=True)
            active_O1 = active_O1 & (next_O1 > enough_O1)
            direction_OI = scaled_OI.addcmul_(
                direction_OI, torch.where(active_O1, next_O1 / size_O1, 0)
            )
            size_O1 = next_O1
        return weight_OI, STEPS
