"""Compares the weights in one of vLLM's workers with a checkpoint's files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from evaluator.engine.vllm.verify.sharding import pieces, rows_held, sampled

_FLOAT32_TOLERANCE = 1.0e-4  # relative; packed kernels sum in another order
_LOW_PRECISION_TOLERANCE = 3.0e-2
_PLAIN = (torch.float32, torch.bfloat16, torch.float16)
# how many matrices were compared, the names of those that differ (vectors as well), and
# of matrices that cannot be compared
Comparison = tuple[int, list[str], list[str]]
# of a checkpoint's files by name, as slices that are read on demand
Tensors = Mapping[str, Any]


def compare(model: Any, files: list[str]) -> Comparison:
    """Compare a sample of every matrix and vector of a worker's model with the files.

    The comparison uses a matrix's products if vLLM packed it for a CPU kernel and
    dropped the original. Experts cannot be compared; they are never swapped. With
    tensor parallelism, the worker's shard is compared with its part of the files."""
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    compared = 0
    differing: list[str] = []
    not_compared: list[str] = []
    with _opened(files) as tensors, torch.no_grad():
        for name, module in model.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                sources = _sources(name, packed, tensors) if own == "weight" else []
                same = None
                if sources:
                    same = _same(module, [tensors[source] for source in sources])
                is_vector = parameter.ndim < 2 and not (
                    own == "weight" and _is_packed(module)
                )
                if same is False:
                    differing.append(f"{name}.{own}")
                elif same is None and not is_vector:
                    not_compared.append(f"{name}.{own}")
                compared += same is not None and not is_vector
    return compared, differing, not_compared


@contextmanager
def _opened(files: Sequence[str]) -> Iterator[Tensors]:
    """The tensors of safetensors files within."""
    tensors: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in files:
            held = stack.enter_context(safe_open(file, framework="pt"))
            tensors |= {name: held.get_slice(name) for name in held.keys()}  # noqa: SIM118  (not a dict)
        yield tensors


def _sources(module: str, packed: dict[str, list[str]], tensors: Tensors) -> list[str]:
    """The tensors of the files that form the rows of a module's weight, in order;
    empty if there are none."""
    if f"{module}.weight" in tensors:
        return [f"{module}.weight"]
    parent, _, name = module.rpartition(".")
    sources = [f"{parent}.{part}.weight" for part in packed.get(name, ())]
    if sources and all(source in tensors for source in sources):
        return sources
    if name == "lm_head" and "model.embed_tokens.weight" in tensors:
        return ["model.embed_tokens.weight"]  # tied
    return []


def _same(module: Any, slices: list[Any]) -> bool | None:
    """Whether sampled rows of a module's weight are those of the files; None if they
    cannot be compared.

    The module holds the weight itself, a kernel's packed copy, or both. The products of
    a packed copy are compared.
    """
    weight: Tensor = module.weight
    shapes = [tuple(each.get_shape()) for each in slices]
    if len(shapes[0]) == 1:
        return (
            bool(torch.equal(slices[0][:].to(weight), weight))
            if weight.shape == shapes[0]
            else None
        )
    is_plain = weight.dtype in _PLAIN
    held = pieces(module, shapes) if is_plain and len(shapes[0]) == 2 else None
    if not held:
        return None
    width = held[0].columns.stop - held[0].columns.start
    stored_RI = _stored(weight, rows_held(held), width)
    probe_PI = torch.randn(2, width, generator=torch.Generator().manual_seed(0)).to(
        weight
    )
    product_PR = (
        module.quant_method.apply(module, probe_PI) if _is_packed(module) else None
    )
    if stored_RI is None and product_PR is None:
        return None
    for piece, where, of_file in sampled(held):
        expected_RI = slices[piece.source][of_file, piece.columns].to(weight)
        if stored_RI is not None and not torch.equal(stored_RI[where], expected_RI):
            return False
        if product_PR is not None and not _close(
            product_PR[:, where], probe_PI, expected_RI
        ):
            return False
    return True


def _stored(weight: Tensor, rows: int, columns: int) -> Tensor | None:
    """A weight with its rows first, as some kernels store columns first. None if it
    lacks a part of the matrix."""
    if weight.ndim == 2 and weight.shape[0] < rows <= weight.shape[1]:
        weight = weight.T
    return (
        weight
        if weight.ndim == 2 and weight.shape[0] >= rows and weight.shape[1] == columns
        else None
    )


def _is_packed(module: Any) -> bool:
    """Whether a CPU kernel has its own copy of the weight, which may then be
    dropped."""
    return getattr(module, "cpu_linear", None) is not None


def _close(output_PR: Tensor, probe_PI: Tensor, weight_RI: Tensor) -> bool:
    expected_PR = probe_PI.float() @ weight_RI.float().T
    scale_PR = probe_PI.float().abs() @ weight_RI.float().abs().T
    tolerance = (
        _FLOAT32_TOLERANCE
        if output_PR.dtype == torch.float32
        else _LOW_PRECISION_TOLERANCE
    )
    return bool(
        ((output_PR.float() - expected_PR).abs() <= tolerance * scale_PR + 1e-12).all()
    )
