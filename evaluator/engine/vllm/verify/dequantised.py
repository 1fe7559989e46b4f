"""Checks that a running layer computes with the values of the files
(`checkpoints/matrices.py` reads them)."""

from collections.abc import Sequence
from typing import Any

import torch

from evaluator.checkpoints.matrices import Matrix, Tensors, is_quantised
from evaluator.engine.vllm.verify.sharding import pieces, sampled

_PROBES = 8
# in a probe: few, so that a wrong weight is larger than what rounding adds up to
_NON_ZERO = 16
# of the products' absolute sum; bfloat16 rounds scales, products and outputs
_TOLERANCE = 2.0e-2
_STEPS = 16.0  # of a static activation scale that a probe is large


def quantised_sources(
    module: str, packed: dict[str, list[str]], tensors: Tensors
) -> list[Matrix]:
    """The quantised matrices of the files that form a module's rows, in order; empty
    if it is not quantised."""
    parent, _, name = module.rpartition(".")
    for bases in (
        [module],
        [f"{parent}.{part}" if parent else part for part in packed.get(name, ())],
    ):
        if bases and all(is_quantised(tensors, base) for base in bases):
            return [Matrix(tensors, base) for base in bases]
    return []


def computes_with(
    module: Any, matrices: Sequence[Matrix], dtype: torch.dtype
) -> bool | None:
    """Whether a layer's products with a few vectors equal those of sampled rows of the
    files; None if it is unknown.

    The vectors have zeros and one absolute value, which quantised activations represent
    exactly.
    """
    held = pieces(module, [matrix.shape for matrix in matrices])
    if not held:
        return None
    width = held[0].columns.stop - held[0].columns.start
    device = next((each.device for each in module.parameters()), torch.device("cpu"))
    scale = getattr(module, "input_scale", None)  # a static activation scale
    probe_PI = _probes(width) * (1.0 if scale is None else _STEPS * float(scale.max()))
    inputs_PI = probe_PI.to(device=device, dtype=dtype)
    try:
        output_PO = module.quant_method.apply(module, inputs_PI).float().cpu()
    except NotImplementedError:  # a quantised embedding only looks rows up
        return None
    probe_PI = inputs_PI.float().cpu()
    for piece, where, of_file in sampled(held):
        weight_RI = matrices[piece.source].rows(of_file.start, of_file.stop)
        if weight_RI is None:
            return None
        weight_RI = weight_RI[:, piece.columns]
        off = (output_PO[:, where] - probe_PI @ weight_RI.T).abs()
        allowed = _TOLERANCE * (probe_PI.abs() @ weight_RI.abs().T) + 1e-12
        if not bool((off <= allowed).all()):
            return False
    return True


def _probes(width: int) -> torch.Tensor:
    """[_PROBES, width]: _NON_ZERO entries of 1 or -1 in each row."""
    made = torch.Generator().manual_seed(0)
    probes = torch.zeros(_PROBES, width)
    for probe in probes:
        where = torch.randperm(width, generator=made)[:_NON_ZERO]
        probe[where] = 2.0 * torch.randint(0, 2, (len(where),), generator=made) - 1.0
    return probes
