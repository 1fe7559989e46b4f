"""Scores: how much each weight matters. Pure; a lower score goes first.

Shapes: O output rows, I input columns. `norm_sq_I` is the squared norm of each input column over the calibration
tokens, float32, divided by the number of sequences (a constant that moves no mask).
"""

from __future__ import annotations

import torch
from torch import Tensor


def magnitude(weight_OI: Tensor) -> Tensor:
    """|W|, float32."""
    return weight_OI.float().abs()


def wanda(weight_OI: Tensor, norm_sq_I: Tensor) -> Tensor:
    """|W| * ||x||, float32 (Sun et al., A Simple and Effective Pruning Approach for LLMs, eq. 1)."""
    return weight_OI.float().abs().mul_(norm_sq_I.float().sqrt())


def ria(weight_OI: Tensor, norm_sq_I: Tensor, power: float = 0.5) -> Tensor:
    """Relative importance (|W| / column sum + |W| / row sum) * ||x||^power (Zhang et al., Plug-and-Play, eqs. 3, 5).

    An all-zero row or column has relative importance 0, not 0 / 0.
    """
    size_OI = weight_OI.float().abs()
    smallest = torch.finfo(torch.float32).tiny
    column_1I = size_OI.sum(dim=0, keepdim=True).clamp_min(smallest)
    row_O1 = size_OI.sum(dim=1, keepdim=True).clamp_min(smallest)
    return (size_OI / column_1I + size_OI / row_O1) * norm_sq_I.float().sqrt() ** power


def sparsegpt(weight_OI: Tensor, factor_diagonal_I: Tensor) -> Tensor:
    """W^2 / d^2, d the diagonal of the inverse Hessian's upper Cholesky factor (Frantar and Alistarh, eq. 5)."""
    return weight_OI**2 / factor_diagonal_I**2
