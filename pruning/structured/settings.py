"""config.json of the smaller model, and the proof that the library builds from it what is written."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from evaluator.core.errors import InputError, one_line
from pruning.model import experts
from pruning.model.architectures import recognise
from pruning.model.decoder import Decoder
from pruning.structured.cut import Cut, Slice

_LISTED = ("layer_types", "mlp_layer_types", "no_rope_layers")  # with an entry for each layer
_NUMBERS = ("mlp_only_layers",)  # with the numbers of layers
_BY_NUMBER = ("per_layer_config",)  # what is special about a layer, by its number
_FIRST = ("max_window_layers", "first_k_dense_replace")  # how many layers come before another kind begins
# What a module says of itself that a cut changes, or that makes no difference here.
_CHANGED = {
    *("layer_idx", "in_features", "out_features", "intermediate_size", "num_heads", "num_attention_heads"),
    *("num_key_value_heads", "op_size", "training"),
    "store_full_length_kv",  # for layers that share keys: no model that has them gets here
}


def mended(decoder: Decoder, cut: Cut) -> dict[str, Any]:
    """config.json with the sizes and layer lists of what stays."""
    whole = copy.deepcopy(decoder.checkpoint.config)
    section = whole["text_config"] if recognise(decoder.checkpoint).text_config else whole
    if cut.unit == "channels":
        section["intermediate_size"] = len(cut.kept())
    elif cut.unit == "heads":
        shared = decoder.config.num_attention_heads // decoder.config.num_key_value_heads
        groups = len(cut.kept())
        linear = decoder.linears(0)["self_attn.o_proj"]
        section |= {"num_attention_heads": groups * shared, "num_key_value_heads": groups}
        section["head_dim"] = linear.in_features // decoder.config.num_attention_heads
    else:
        section |= _of_layers(decoder, cut, section)
    return whole


def _of_layers(decoder: Decoder, cut: Cut, section: Mapping[str, Any]) -> dict[str, Any]:
    kept = cut.kept()
    changed: dict[str, Any] = {"num_hidden_layers": len(kept)}
    for name in _LISTED:  # also a default that the architecture derives from a layer's number
        values = getattr(decoder.config, name, None)
        if isinstance(values, list | tuple) and len(values) == cut.of:
            changed[name] = [values[layer] for layer in kept]
    for name in _NUMBERS:
        if isinstance(section.get(name), list):
            changed[name] = [number for number, layer in enumerate(kept) if layer in section[name]]
    for name in _BY_NUMBER:
        if isinstance(section.get(name), dict):
            special = {int(layer): value for layer, value in section[name].items()}
            changed[name] = {str(number): special[layer] for number, layer in enumerate(kept) if layer in special}
    for name in _FIRST:
        if isinstance(section.get(name), int):
            changed[name] = sum(layer < section[name] for layer in kept)
    return changed


def check_built(decoder: Decoder, cut: Cut, kept: Mapping[str, Slice | None]) -> None:
    """Raises InputError unless the library builds a model of the very tensors that stay, each layer of its old kind."""
    from transformers import AutoModel

    settings, architecture = mended(decoder, cut), recognise(decoder.checkpoint)
    if architecture.text_config:
        settings = settings["text_config"]
    file = decoder.checkpoint.directory / "config.json"
    try:
        config = type(decoder.config).from_dict(settings)
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layers = AutoModel.from_config(config).eval().layers
        if architecture.experts is not None:
            experts.separate(layers, architecture.experts)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InputError(f"{file}: with fewer {cut.unit} it is no model: {one_line(error)}") from error
    shapes = {each.name: each.shape for each in kept.values() if each is not None}
    sources = cut.kept() if cut.unit == "layers" else range(len(decoder))
    for number, (source, layer) in enumerate(zip(sources, layers, strict=True)):
        for name, tensor in layer.state_dict().items():
            written = decoder.tensor_name(number, name)
            if shapes.get(written) != tuple(tensor.shape):
                raise InputError(
                    f"{file}: with fewer {cut.unit}, {written} would be {tuple(tensor.shape)}, and "
                    f"{shapes.get(written)} stays of it"
                )
        _check_kind(decoder.layers[source], layer, f"{file}: with fewer {cut.unit}, layer {source}")


def _check_kind(source: nn.Module, layer: nn.Module, place: str) -> None:
    modules = dict(source.named_modules())
    for name, module in layer.named_modules():
        for field, value in vars(module).items():
            if field in _CHANGED or not isinstance(value, bool | int | float | str | None):
                continue
            before = getattr(modules[name], field, value)
            if before != value:
                raise InputError(f"{place} would be of another kind: {name}.{field} {value!r}, not {before!r}")
