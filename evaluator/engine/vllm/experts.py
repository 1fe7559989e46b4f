"""Whether vLLM computes with the experts of the files: it keeps a layer's in two tensors, in its kernels' own order.

A few experts of each layer are asked for a few random tokens, each as if the router had sent it there alone; what comes
out is compared with what the files' matrices give. This is done on a CPU only: a GPU's kernels need what vLLM prepares
for a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from evaluator.engine.vllm.dequantised import Tensors

_PROBES = 2  # tokens for each expert
_FLOAT32_TOLERANCE = 1.0e-3  # of the products' absolute sum; the kernels sum in another order
_LOW_PRECISION_TOLERANCE = 5.0e-2


def holds_experts(module: Any) -> bool:
    """Whether a layer of vLLM holds experts."""
    return hasattr(module, "w13_weight") and hasattr(module, "w2_weight")


def computes_with_experts(name: str, module: Any, tensors: Tensors) -> bool | None:
    """Whether the first, the middle and the last expert are the files'; None if they cannot be compared, as on a GPU.

    With tensor parallelism a worker holds some of an expert's inner rows, and they are compared.
    """
    base = name.removesuffix(".routed_experts")
    parts = [getattr(module, f"ckpt_{part}_proj_name", None) for part in ("gate", "up", "down")]
    experts = module.global_num_experts
    chosen = sorted({0, experts // 2, experts - 1})
    names = {expert: [f"{base}.{expert}.{part}.weight" for part in parts] for expert in chosen}
    plain = module.w13_weight.is_floating_point() and module.w13_weight.device.type == "cpu"
    found = all(each in tensors for expert in chosen for each in names[expert])
    if not plain or not found or module.expert_map is not None or getattr(module.activation, "value", "") != "silu":
        return None
    probes_PH = torch.randn(
        len(chosen) * _PROBES, tensors[names[0][0]].get_shape()[1], generator=torch.Generator().manual_seed(0)
    ).to(module.w13_weight)
    ids_P1 = torch.tensor([[expert] for expert in chosen for _ in range(_PROBES)], dtype=torch.int32)
    weights_P1 = torch.ones(len(ids_P1), 1)
    outputs_PH = module.quant_method.apply(
        layer=module,
        x=probes_PH.clone(),
        topk_weights=weights_P1,
        topk_ids=ids_P1,
        shared_experts=None,
        shared_experts_input=None,
    )
    tolerance = _FLOAT32_TOLERANCE if outputs_PH.dtype == torch.float32 else _LOW_PRECISION_TOLERANCE
    for index, expert in enumerate(chosen):
        own = slice(index * _PROBES, (index + 1) * _PROBES)
        expected_PH, scale_PH = _expected(probes_PH[own], [tensors[each] for each in names[expert]], module)
        if not bool(((outputs_PH[own].float() - expected_PH).abs() <= tolerance * scale_PH + 1e-12).all()):
            return False
    return True


def _expected(probes_PH: torch.Tensor, slices: list[Any], module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """What an expert of the files gives, and the absolute sum of its terms; float32 (probes, width) both."""
    gate, up, down = slices
    config = module.moe_config
    inner = gate.get_shape()[0] // config.tp_size
    held = slice(config.tp_rank * inner, (config.tp_rank + 1) * inner)
    dtype = probes_PH.dtype  # the engine's, in which it holds the weights
    gate_IH, up_IH, down_HI = (each.to(dtype).float() for each in (gate[held], up[held], down[:, held]))
    gated_PI = functional.silu(functional.linear(probes_PH.float(), gate_IH))
    middle_PI = gated_PI * functional.linear(probes_PH.float(), up_IH)
    return functional.linear(middle_PI, down_HI), functional.linear(middle_PI.abs(), down_HI.abs())
