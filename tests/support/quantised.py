"""Quantised copies of a checkpoint, made by rounding to nearest, in the layouts that
tools write.

`quantise` writes one, and can also write its twin: the dense checkpoint of the values
that the quantised weights stand for, which transformers computes with. The arithmetic
here is written out and shares none with the product's.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
GROUP = 32
# which of 8 neighbouring columns lies in which 4 bits of an int32
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Quantised:
    """One matrix: its tensors by the last part of their names, and the values that
    they stand for."""

    tensors: Mapping[str, Any]
    values: Any


@dataclass(frozen=True, slots=True)
class Layout:
    """A way to store quantised weights: `quantization_config`, and how a matrix
    [out, in] is stored."""

    config: Mapping[str, Any]
    store: Callable[[Any], Quantised]


def dequantised(directory: Path) -> Callable[[str], Any]:
    """The values of a matrix that our rounding wrote, by the module's name."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme

    tensors = load_file(directory / WEIGHTS)
    document = json.loads((directory / "config.json").read_text())
    (group,) = document["quantization_config"]["config_groups"].values()
    scheme = QuantizationScheme.model_validate(group)

    def values(module: str) -> Any:
        parts = {}
        for name, tensor in tensors.items():
            if name.startswith(f"{module}."):
                parts[name.removeprefix(f"{module}.")] = tensor
        format = "pack-quantized" if "weight_packed" in parts else "naive-quantized"
        compressor = BaseCompressor.get_value_from_registry(format)
        return compressor.decompress(parts, scheme)["weight"].float()

    return values


def quantise(
    source: Path,
    directory: Path,
    layout: str,
    *,
    twin: Path | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write `source`, quantised in a layout of `LAYOUTS`. `twin`: where its dense
    copy goes. `config`: other fields."""
    chosen = LAYOUTS[layout]
    stored: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, tensor in load_file(source / WEIGHTS).items():
        values[name] = tensor
        if not name.endswith("_proj.weight"):
            stored[name] = tensor
            continue
        made = chosen.store(tensor.float())
        # exact: the products of float8 and its scales need more than bfloat16
        values[name] = made.values.float()
        stored |= {
            f"{name.removesuffix('weight')}{part}": each.contiguous()
            for part, each in made.tensors.items()
        }
    for target, tensors in ((directory, stored), (twin, values)):
        if target is None:
            continue
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(WEIGHTS))
        save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return with_quantisation(directory, {**chosen.config, **(config or {})})


def with_quantisation(directory: Path, config: Mapping[str, Any]) -> Path:
    """Say in a checkpoint's config.json that it is quantised; its tensors stay as
    they are."""
    document = json.loads((directory / "config.json").read_text())
    document["quantization_config"] = dict(config)
    (directory / "config.json").write_text(json.dumps(document, indent=2))
    return directory


def compressed_tensors(
    format: str,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A quantization_config as llm-compressor writes it."""
    group = {
        "targets": ["Linear"],
        "weights": dict(weights),
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "kv_cache_scheme": None, **more,
    }  # fmt: skip


def integers(
    bits: int,
    strategy: str,
    *,
    group: int | None = None,
    symmetric: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """The arguments of integer weights or activations."""
    return {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": strategy, "group_size": group,
        "dynamic": False, "actorder": None, "observer": "minmax", **more,
    }  # fmt: skip


def floats(strategy: str, *, dynamic: bool = False, **more: Any) -> dict[str, Any]:
    """The arguments of FP8 weights or activations."""
    return {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": strategy,
        "dynamic": dynamic,
        **more,
    }


def _nearest(weight_OI: Any, bits: int, group: int) -> tuple[Any, Any]:
    """Integers around 0 [O, I] and their scales [O, I / group]; the scales are those
    of bfloat16."""
    out, inputs = weight_OI.shape
    grouped = weight_OI.reshape(out, inputs // group, group)
    most = 2 ** (bits - 1) - 1
    scales = (
        (grouped.abs().amax(-1, keepdim=True) / most)
        .clamp(min=1e-8)
        .to(torch.bfloat16)
        .float()
    )
    whole = (grouped / scales).round().clamp(-most - 1, most)
    return whole.reshape(out, inputs), scales[..., 0]


def _values(whole_OI: Any, scales_OG: Any) -> Any:
    group = whole_OI.shape[1] // scales_OG.shape[1]
    return whole_OI * scales_OG.repeat_interleave(group, dim=1)


def _packed(bits: int, group: int | None) -> Callable[[Any], Quantised]:
    def store(weight_OI: Any) -> Quantised:
        from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

        whole, scales = _nearest(weight_OI, bits, group or weight_OI.shape[1])
        tensors = {
            "weight_packed": pack_to_int32(whole.to(torch.int8), bits),
            "weight_scale": scales.bfloat16(),
        }
        return Quantised(
            tensors | {"weight_shape": torch.tensor(weight_OI.shape)},
            _values(whole, scales),
        )

    return store


def _int8(weight_OI: Any) -> Quantised:
    whole, scales = _nearest(weight_OI, 8, weight_OI.shape[1])
    return Quantised(
        {"weight": whole.to(torch.int8), "weight_scale": scales.bfloat16()},
        _values(whole, scales),
    )


def _fp8(
    scale_name: str, *, per: str, input_scale: float | None = None
) -> Callable[[Any], Quantised]:
    def store(weight_OI: Any) -> Quantised:
        out, inputs = weight_OI.shape
        rows, columns = {
            "channel": (1, inputs),
            "tensor": (out, inputs),
            "block": (128, 128),
        }[per]
        down, across = -(-out // rows), -(-inputs // columns)
        padded = torch.zeros(down * rows, across * columns)
        padded[:out, :inputs] = weight_OI
        blocks = padded.reshape(down, rows, across, columns)
        scales = (blocks.abs().amax((1, 3)) / 448).clamp(min=1e-8)
        spread = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[
            :out, :inputs
        ]
        whole = (weight_OI / spread).to(torch.float8_e4m3fn)
        tensors = {
            "weight": whole,
            scale_name: scales.reshape(()) if per == "tensor" else scales,
        }
        if input_scale is not None:
            tensors["input_scale"] = torch.tensor(input_scale)
        return Quantised(tensors, whole.float() * spread)

    return store


def _gptq(weight_OI: Any) -> Quantised:
    whole, scales = _nearest(weight_OI, 4, GROUP)
    columns_IO = (whole + 8).T.to(torch.int64)
    shifts = torch.arange(0, 32, 4)
    packed = (
        columns_IO.reshape(-1, 8, columns_IO.shape[1]) << shifts[None, :, None]
    ).sum(1)
    groups = scales.shape[1]
    # 8 - 1, as GPTQ stores it
    zeros = torch.full((groups, weight_OI.shape[0] // 8), 0x77777777, dtype=torch.int32)
    tensors = {
        "qweight": _as_int32(packed),
        "qzeros": zeros,
        "scales": scales.T.bfloat16(),
    }
    groups_I = (torch.arange(weight_OI.shape[1]) // GROUP).to(torch.int32)
    return Quantised(tensors | {"g_idx": groups_I}, _values(whole, scales))


def _awq(weight_OI: Any) -> Quantised:
    out, inputs = weight_OI.shape
    grouped = weight_OI.reshape(out, inputs // GROUP, GROUP)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    scales = ((high - low) / 15).clamp(min=1e-8).to(torch.bfloat16).float()
    zeros = (-low / scales).round().clamp(0, 15)
    whole = ((grouped / scales).round() + zeros).clamp(0, 15)
    packed, packed_zeros = (
        _awq_packed(whole.reshape(out, inputs).T),
        _awq_packed(zeros[..., 0].T),
    )
    tensors = {
        "qweight": packed,
        "qzeros": packed_zeros,
        "scales": scales[..., 0].T.bfloat16(),
    }
    return Quantised(tensors, ((whole - zeros) * scales).reshape(out, inputs))


def _awq_packed(whole_NO: Any) -> Any:
    eights = whole_NO.to(torch.int64).reshape(whole_NO.shape[0], -1, 8)[
        :, :, list(_AWQ_ORDER)
    ]
    return _as_int32((eights << torch.arange(0, 32, 4)).sum(-1))


def _as_int32(whole: Any) -> Any:
    return torch.where(whole >= 2**31, whole - 2**32, whole).to(torch.int32)


_TOKEN8 = integers(8, "token", dynamic=True)
LAYOUTS: Mapping[str, Layout] = {
    "w4a16": Layout(
        compressed_tensors("pack-quantized", integers(4, "group", group=GROUP)),
        _packed(4, GROUP),
    ),
    "w4a16-channel": Layout(
        compressed_tensors("pack-quantized", integers(4, "channel")), _packed(4, None)
    ),
    "w8a16": Layout(
        compressed_tensors("pack-quantized", integers(8, "group", group=GROUP)),
        _packed(8, GROUP),
    ),
    "w8a8": Layout(
        compressed_tensors("int-quantized", integers(8, "channel"), _TOKEN8), _int8
    ),
    "fp8": Layout(
        compressed_tensors(
            "float-quantized", floats("channel"), floats("token", dynamic=True)
        ),
        _fp8("weight_scale", per="channel"),
    ),
    "fp8-static": Layout(
        compressed_tensors("float-quantized", floats("tensor"), floats("tensor")),
        _fp8("weight_scale", per="tensor", input_scale=0.02),
    ),
    "fp8-block": Layout(
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
        },
        _fp8("weight_scale_inv", per="block"),
    ),
    "fp8-tensor": Layout(
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        _fp8("weight_scale", per="tensor"),
    ),
    "gptq": Layout(
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "desc_act": False,
            "sym": True,
            "lm_head": False,
        },
        _gptq,
    ),
    "awq": Layout(
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
        _awq,
    ),
}


def rounding_inputs(model: Any, layout: str) -> Any:
    """A transformers model of a layout's twin; its matrices see inputs that are
    rounded for each token."""
    inputs = LAYOUTS[layout].config["config_groups"]["group_0"]["input_activations"]
    assert inputs is None or inputs["dynamic"]
    most = {None: None, "int": 127.0, "float": 448.0}[inputs and inputs["type"]]

    def rounded(_: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        (given,) = arguments
        scale = (given.float().abs().amax(-1, keepdim=True) / most).clamp(min=1e-12)
        whole = given.float() / scale
        whole = (
            whole.round() if most == 127.0 else whole.to(torch.float8_e4m3fn).float()
        )
        return ((whole * scale).to(given.dtype),)

    for name, module in model.named_modules():
        if most is not None and name.endswith("_proj"):
            module.register_forward_pre_hook(rounded)
    return model
