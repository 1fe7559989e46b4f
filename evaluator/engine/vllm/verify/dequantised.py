"""Checks that a running layer computes with the values of the files
(`checkpoints/matrices.py` reads them).

vLLM keeps a layer's experts in two tensors, in its kernels' own order. A few experts
of each layer compute with a few random tokens, each as if the router had sent it
there alone. On a GPU they are not compared: its kernels need what vLLM prepares for
a step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from evaluator.checkpoints.matrices import Matrix, Tensors, is_quantised
from evaluator.engine.vllm.verify.sharding import pieces, sampled

_PROBES = 8
# in a probe: few, so that a wrong weight is larger than what rounding adds up to
_NON_ZERO = 16
# of the products' absolute sum; bfloat16 rounds scales, products and outputs
_TOLERANCE = 2.0e-2
_STEPS = 16.0  # of a static activation scale that a probe is large
_EXPERT_PROBES = 2  # tokens for each expert
# of the products' absolute sum; the kernels sum in another order
_FLOAT32_TOLERANCE = 1.0e-3
_LOW_PRECISION_TOLERANCE = 5.0e-2


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
        if not bool(
            (off <= _TOLERANCE * (probe_PI.abs() @ weight_RI.abs().T) + 1e-12).all()
        ):
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


def computes_with_experts(name: str, module: Any, tensors: Tensors) -> bool | None:
    """Whether the first, middle and last expert equal the files; None if they cannot be
    compared, as on a GPU.

    With tensor parallelism a worker holds some of an expert's inner rows, and they are
    compared.
    """
    base = name.removesuffix(".routed_experts")
    parts = [
        getattr(module, f"ckpt_{part}_proj_name", None)
        for part in ("gate", "up", "down")
    ]
    experts = module.global_num_experts
    chosen = sorted({0, experts // 2, experts - 1})
    names = {
        expert: [f"{base}.{expert}.{part}.weight" for part in parts]
        for expert in chosen
    }
    plain = (
        module.w13_weight.is_floating_point() and module.w13_weight.device.type == "cpu"
    )
    found = all(each in tensors for expert in chosen for each in names[expert])
    if (
        not plain
        or not found
        or module.expert_map is not None
        or getattr(module.activation, "value", "") != "silu"
    ):
        return None
    probes_PH = torch.randn(
        len(chosen) * _EXPERT_PROBES,
        tensors[names[0][0]].get_shape()[1],
        generator=torch.Generator().manual_seed(0),
    ).to(module.w13_weight)
    ids_P1 = torch.tensor(
        [[expert] for expert in chosen for _ in range(_EXPERT_PROBES)],
        dtype=torch.int32,
    )
    outputs_PH = module.quant_method.apply(
        layer=module,
        x=probes_PH.clone(),
        topk_weights=torch.ones(len(ids_P1), 1),
        topk_ids=ids_P1,
        shared_experts=None,
        shared_experts_input=None,
    )
    tolerance = (
        _FLOAT32_TOLERANCE
        if outputs_PH.dtype == torch.float32
        else _LOW_PRECISION_TOLERANCE
    )
    for index, expert in enumerate(chosen):
        own = slice(index * _EXPERT_PROBES, (index + 1) * _EXPERT_PROBES)
        expected_PH, scale_PH = _expected(
            probes_PH[own], [tensors[each] for each in names[expert]], module
        )
        if not bool(
            (
                (outputs_PH[own].float() - expected_PH).abs()
                <= tolerance * scale_PH + 1e-12
            ).all()
        ):
            return False
    return True


def _expected(
    probes_PH: torch.Tensor, slices: list[Any], module: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of an expert of the files, and the absolute sum of its terms;
    float32 (probes, width) both."""
    gate, up, down = slices
    config = module.moe_config
    inner = gate.get_shape()[0] // config.tp_size
    held = slice(config.tp_rank * inner, (config.tp_rank + 1) * inner)
    dtype = probes_PH.dtype  # the engine's, in which it holds the weights
    gate_IH, up_IH, down_HI = (
        each.to(dtype).float() for each in (gate[held], up[held], down[:, held])
    )
    gated_PI = functional.silu(functional.linear(probes_PH.float(), gate_IH))
    middle_PI = gated_PI * functional.linear(probes_PH.float(), up_IH)
    return functional.linear(middle_PI, down_HI), functional.linear(
        middle_PI.abs(), down_HI.abs()
    )
