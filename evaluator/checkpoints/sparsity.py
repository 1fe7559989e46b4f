"""How sparse a checkpoint's pruned matrices are: their zeros are counted in the
files, whatever a manifest states."""

import re
from collections.abc import Sequence

import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.quantisation import KEY
from evaluator.checkpoints.tensors import FLOATS
from evaluator.core.liveness import HEARTBEAT

# the tensors of a packed matrix
_PARTS = ("weight_packed", "weight_shape", "weight_scale", "weight_zero_point")
# With such values and no zero point, a weight is zero where its number is.
_NUMBERS = {*FLOATS, "I8", "F8_E4M3", "F8_E5M2"}


def measure(
    checkpoint: Checkpoint, names: Sequence[str], pattern: str
) -> tuple[float, str] | None:
    """Zeros / weights over the matrices `names` ("....weight"), and their pattern: an
    N:M `pattern` that does not hold becomes "unstructured". None where there is no
    matrix, one is missing, or its layout is not known."""
    grouped = re.fullmatch(r"(\d+):([1-9]\d*)", pattern)
    zeros = weights = 0
    for name in names:
        HEARTBEAT.beat()
        zero_OI = _zeros(checkpoint, name)
        if zero_OI is None or zero_OI.ndim != 2:
            return None
        zeros += int(zero_OI.sum())
        weights += zero_OI.numel()
        if grouped and not groups_hold(zero_OI, int(grouped[1]), int(grouped[2])):
            pattern = "unstructured"
    return (zeros / weights, pattern) if weights else None


def _zeros(checkpoint: Checkpoint, name: str) -> torch.Tensor | None:
    """Which weights of a matrix are zero; None for a layout that is not known."""
    tensors, base = checkpoint.tensors, name.removesuffix(".weight")
    stored = {part: tensors.get(f"{base}.{part}") for part in _PARTS}
    if stored["weight_packed"] is not None:
        return _unpacked_zeros(
            checkpoint, {part: each.stored() for part, each in stored.items() if each}
        )
    weight = tensors.get(name)
    if weight is None or weight.dtype not in _NUMBERS or stored["weight_zero_point"]:
        return None
    return weight.stored().float() == 0


def _unpacked_zeros(
    checkpoint: Checkpoint, parts: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    try:
        from compressed_tensors.compressors.pack_quantized.base import (
            PackedQuantizationCompressor,
        )
        from compressed_tensors.quantization import QuantizationScheme

        [group] = checkpoint.config[KEY]["config_groups"].values()
        scheme = QuantizationScheme.model_validate(group)
        made = PackedQuantizationCompressor.decompress(parts, scheme)
    except (
        *(ImportError, ArithmeticError, AssertionError, AttributeError, LookupError),
        *(RuntimeError, TypeError, ValueError),
    ):  # it is not installed, or the parts do not fit
        return None
    zero_OI: torch.Tensor = made["weight"] == 0
    return zero_OI


def groups_hold(zero_OI: torch.Tensor, n: int, m: int) -> bool:
    """Whether every `m` consecutive columns of every row have at least `n` zeros."""
    rows, columns = zero_OI.shape
    return columns % m == 0 and bool(
        (zero_OI.reshape(rows, columns // m, m).sum(dim=2) >= n).all()
    )
