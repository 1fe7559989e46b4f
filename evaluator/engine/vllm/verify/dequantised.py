"""Dequantises tensors of the files, row by row, and checks that a running layer computes with these values.

Three layouts are read, by their tensors' names and shapes:

- compressed-tensors, packed: `weight_packed` [out, in / k] has k columns in an int32, from its lowest bits on. The
  offset is half the range, or `weight_zero_point` [out / k, groups], packed along its rows. `weight_scale` is
  [out, groups].
- plain: `weight` [out, in] of int8 or float8, with `weight_scale` or `weight_scale_inv` of one value, one for each row,
  or one for each block;
- GPTQ: `qweight` [in / 8, out], packed along its rows. AWQ: `qweight` [in, out / 8], packed along its columns in AWQ's
  order. Both have `scales` and `qzeros` [groups, ...].

The arithmetic is this module's own: it checks vLLM's, and compressed-tensors' is what vLLM loads with.

vLLM keeps a layer's experts in two tensors, in its kernels' own order. A few experts of each layer compute with a few
random tokens, each as if the router had sent it there alone. On a GPU they are not compared: its kernels need what vLLM
prepares for a step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from evaluator.engine.vllm.verify.sharding import pieces, sampled

Tensors = Mapping[str, Any]  # of a checkpoint's files by name, as slices that are read on demand
_PROBES = 8
_NON_ZERO = 16  # in a probe: few, so that a wrong weight is larger than what rounding adds up to
_TOLERANCE = 2.0e-2  # of the products' absolute sum; bfloat16 rounds scales, products and outputs
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # of the columns in an int32, from the lowest bits on
_STEPS = 16.0  # of a static activation scale that a probe is large
# The tensors of a quantised matrix; the first one that is there holds its values.
_PARTS = ("weight_packed", "qweight", "weight", "weight_shape", "weight_scale", "weight_scale_inv",
          "weight_zero_point", "scales", "qzeros", "g_idx")  # fmt: skip
_PLAIN = {"I8", "F8_E4M3", "F8_E5M2"}
_EXPERT_PROBES = 2  # tokens for each expert
_FLOAT32_TOLERANCE = 1.0e-3  # of the products' absolute sum; the kernels sum in another order
_LOW_PRECISION_TOLERANCE = 5.0e-2


class Matrix:
    """A quantised matrix [out, in] of the files."""

    def __init__(self, tensors: Tensors, base: str) -> None:
        names = {name: f"{base}.{name}" for name in _PARTS}
        self._parts = {name: tensors[whole] for name, whole in names.items() if whole in tensors}
        self._stored = next(name for name in _PARTS if name in self._parts)
        self.shape = self._shape()

    def rows(self, first: int, stop: int) -> torch.Tensor | None:
        """The values of some rows, in float32 [rows, in]; None where the layout is not known here."""
        if self._stored == "weight":
            return self._plain(first, stop)
        return self._packed(first, stop) if self._stored == "weight_packed" else self._columns(first, stop)

    def _shape(self) -> tuple[int, int]:
        if self._stored == "weight":
            out, inputs = self._parts["weight"].get_shape()
        elif self._stored == "weight_packed":
            out, inputs = (int(size) for size in self._parts["weight_shape"][:])
        else:
            rows, columns = self._parts["qweight"].get_shape()
            out = self._parts["scales"].get_shape()[1]
            inputs = rows * 8 if columns == out else rows
            if "g_idx" in self._parts:  # 8 bits are stored in the same way
                inputs = self._parts["g_idx"].get_shape()[0]
        return out, inputs

    def _plain(self, first: int, stop: int) -> torch.Tensor | None:
        name = next((name for name in ("weight_scale", "weight_scale_inv") if name in self._parts), None)
        if name is None:
            return None
        whole: torch.Tensor = self._parts["weight"][first:stop].float()
        scales = self._parts[name]
        shape = tuple(scales.get_shape())
        out, inputs = self.shape
        if shape in ((), (1,)):
            one: torch.Tensor = scales[...] if not shape else scales[:]
            return whole * one.reshape(()).float()
        if shape[0] == out:
            values: torch.Tensor = whole * scales[first:stop].float().reshape(stop - first, -1)[:, :1]
            return values
        if len(shape) == 2 and shape[0] > 0 and shape[1] > 0:
            height, width = _block(out, shape[0]), _block(inputs, shape[1])
            rows: torch.Tensor = scales[:].float()[torch.arange(first, stop) // height]
            return whole * rows.repeat_interleave(width, 1)[:, :inputs]
        return None

    def _packed(self, first: int, stop: int) -> torch.Tensor | None:
        packed = self._parts["weight_packed"]
        out, inputs = self.shape
        each = -(-inputs // packed.get_shape()[1])  # columns in an int32
        if each not in (4, 8):
            return None
        bits = 32 // each
        whole = _unpacked(packed[first:stop], bits).reshape(stop - first, -1)[:, :inputs]
        scales: torch.Tensor = self._parts["weight_scale"][first:stop].float()
        zeros: torch.Tensor | float = float(2 ** (bits - 1))
        if "weight_zero_point" in self._parts:
            down = self._parts["weight_zero_point"][:].T  # [groups, out / k]
            zeros = _unpacked(down, bits).reshape(down.shape[0], -1)[:, :out].T[first:stop]
            zeros = zeros.repeat_interleave(inputs // zeros.shape[1], 1)
        return (whole - zeros) * scales.repeat_interleave(inputs // scales.shape[1], 1)

    def _columns(self, first: int, stop: int) -> torch.Tensor | None:
        qweight = self._parts["qweight"]
        scales: torch.Tensor = self._parts["scales"][:, first:stop].float()
        out, inputs = self.shape
        if qweight.get_shape()[1] == out:  # GPTQ: symmetric, as in vLLM; g_idx has each row's group
            bits = 32 * int(qweight.get_shape()[0]) // inputs
            whole = _unpacked(qweight[:, first:stop].T.contiguous(), bits).reshape(stop - first, inputs)
            groups = torch.arange(inputs) // (inputs // scales.shape[0])
            if "g_idx" in self._parts:
                groups = self._parts["g_idx"][:].long()
            values: torch.Tensor = (whole - 2 ** (bits - 1)) * scales[groups].T
            return values
        low, high = first // 8, -(-stop // 8)
        inside = slice(first - 8 * low, stop - 8 * low)
        order = list(_AWQ_ORDER)
        whole = _unpacked(qweight[:, low:high], 4)[..., order].reshape(inputs, -1)[:, inside]
        zeros = _unpacked(self._parts["qzeros"][:, low:high], 4)[..., order].reshape(scales.shape[0], -1)[:, inside]
        group = inputs // scales.shape[0]
        return ((whole - zeros.repeat_interleave(group, 0)) * scales.repeat_interleave(group, 0)).T


def quantised_sources(module: str, packed: dict[str, list[str]], tensors: Tensors) -> list[Matrix]:
    """The quantised matrices of the files that form a module's rows, in order; empty if it is not quantised."""
    parent, _, name = module.rpartition(".")
    for bases in ([module], [f"{parent}.{part}" if parent else part for part in packed.get(name, ())]):
        if bases and all(_is_quantised(tensors, base) for base in bases):
            return [Matrix(tensors, base) for base in bases]
    return []


def computes_with(module: Any, matrices: Sequence[Matrix], dtype: torch.dtype) -> bool | None:
    """Whether a layer's products with a few vectors equal those of sampled rows of the files; None if it is unknown.

    The vectors have zeros and one absolute value, which quantised activations represent exactly."""
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
        if not bool((off <= _TOLERANCE * (probe_PI.abs() @ weight_RI.abs().T) + 1e-12).all()):
            return False
    return True


def _is_quantised(tensors: Tensors, base: str) -> bool:
    if f"{base}.weight_packed" in tensors:
        return f"{base}.weight_shape" in tensors and f"{base}.weight_scale" in tensors
    if f"{base}.qweight" in tensors:
        return f"{base}.scales" in tensors and f"{base}.qzeros" in tensors
    return f"{base}.weight" in tensors and tensors[f"{base}.weight"].get_dtype() in _PLAIN


def _unpacked(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [...] -> float32 [..., 32 / bits], from the lowest bits on."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values: torch.Tensor = ((packed[..., None] >> shifts) & (2**bits - 1)).float()
    return values


def _block(size: int, blocks: int) -> int:
    """The length of `blocks` equal blocks that cover `size`, the last one perhaps in part: the next power of two."""
    least = -(-size // blocks)
    length = 1
    while length < least:
        length *= 2
    return length if -(-size // length) == blocks else least


def _probes(width: int) -> torch.Tensor:
    """[_PROBES, width]: _NON_ZERO entries of 1 or -1 in each row."""
    made = torch.Generator().manual_seed(0)
    probes = torch.zeros(_PROBES, width)
    for probe in probes:
        where = torch.randperm(width, generator=made)[:_NON_ZERO]
        probe[where] = 2.0 * torch.randint(0, 2, (len(where),), generator=made) - 1.0
    return probes


def computes_with_experts(name: str, module: Any, tensors: Tensors) -> bool | None:
    """Whether the first, middle and last expert equal the files; None if they cannot be compared, as on a GPU.

    With tensor parallelism a worker holds some of an expert's inner rows, and they are compared."""
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
        len(chosen) * _EXPERT_PROBES, tensors[names[0][0]].get_shape()[1], generator=torch.Generator().manual_seed(0)
    ).to(module.w13_weight)
    ids_P1 = torch.tensor([[expert] for expert in chosen for _ in range(_EXPERT_PROBES)], dtype=torch.int32)
    outputs_PH = module.quant_method.apply(
        layer=module,
        x=probes_PH.clone(),
        topk_weights=torch.ones(len(ids_P1), 1),
        topk_ids=ids_P1,
        shared_experts=None,
        shared_experts_input=None,
    )
    tolerance = _FLOAT32_TOLERANCE if outputs_PH.dtype == torch.float32 else _LOW_PRECISION_TOLERANCE
    for index, expert in enumerate(chosen):
        own = slice(index * _EXPERT_PROBES, (index + 1) * _EXPERT_PROBES)
        expected_PH, scale_PH = _expected(probes_PH[own], [tensors[each] for each in names[expert]], module)
        if not bool(((outputs_PH[own].float() - expected_PH).abs() <= tolerance * scale_PH + 1e-12).all()):
            return False
    return True


def _expected(probes_PH: torch.Tensor, slices: list[Any], module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of an expert of the files, and the absolute sum of its terms; float32 (probes, width) both."""
    gate, up, down = slices
    config = module.moe_config
    inner = gate.get_shape()[0] // config.tp_size
    held = slice(config.tp_rank * inner, (config.tp_rank + 1) * inner)
    dtype = probes_PH.dtype  # the engine's, in which it holds the weights
    gate_IH, up_IH, down_HI = (each.to(dtype).float() for each in (gate[held], up[held], down[:, held]))
    gated_PI = functional.silu(functional.linear(probes_PH.float(), gate_IH))
    middle_PI = gated_PI * functional.linear(probes_PH.float(), up_IH)
    return functional.linear(middle_PI, down_HI), functional.linear(middle_PI.abs(), down_HI.abs())
