"""The smaller checkpoint: config.json, and a shard for each of the source's that
keeps a tensor.

`check_built` proves that the library builds from config.json exactly what is
written. Shards are written tensor by tensor."""

import copy
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.tensors import INDEX, SINGLE, Tensor
from evaluator.core.errors import InputError, one_line
from evaluator.core.liveness import HEARTBEAT
from pruning.model.architectures import architecture_of, separate
from pruning.model.decoder import Decoder
from pruning.structured.cut import Cut, Slice


def write(
    checkpoint: Checkpoint,
    kept: Mapping[str, Slice | None],
    config: Mapping[str, Any],
    folder: Path,
) -> None:
    """Fill `folder` with shards, their index and config.json. Memory holds one
    tensor that was cut, or a chunk."""
    tensors = sorted(checkpoint.tensors.values(), key=lambda tensor: tensor.start)
    tensors.sort(key=lambda tensor: -_width(tensor))  # each is aligned to its type
    shards: list[list[tuple[Tensor, Slice]]] = []
    for file in checkpoint.shards:
        shard = []
        for tensor in tensors:
            part = kept[tensor.name]
            if tensor.file == file and part is not None:
                shard.append((tensor, part))
        if shard:
            shards.append(shard)
    homes: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards):
        name = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            name = SINGLE
        sizes = {}
        for tensor, part in shard:
            size = tensor.size
            if part.shape != tensor.shape:
                size = _width(tensor) * math.prod(part.shape)
            sizes[part.name] = (tensor.dtype, part.shape, size)
            homes[part.name] = name
        chunks = (chunk for tensor, part in shard for chunk in content(tensor, part))
        total += write_safetensors(folder / name, sizes, chunks)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": total},
            "weight_map": dict(sorted(homes.items())),
        }
        (folder / INDEX).write_text(
            json.dumps(index, indent=2) + "\n", encoding="utf-8"
        )
    (folder / "config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def content(tensor: Tensor, part: Slice) -> Iterator[bytes | memoryview]:
    """The bytes of what stays of a tensor. Raises InputError for NaN and infinity."""
    if part.rows is None and part.columns is None:
        yield from tensor.chunks()
        return
    weight = tensor.read()
    for dimension, indices in enumerate((part.rows, part.columns)):
        if indices is not None:
            weight = weight.index_select(dimension, indices)
    yield weight.contiguous().view(torch.uint8).numpy().reshape(-1).data


def _width(tensor: Tensor) -> int:
    """Bytes of an element."""
    return tensor.size // max(1, math.prod(tensor.shape))


def write_safetensors(
    file: Path,
    tensors: Mapping[str, tuple[str, Sequence[int], int]],
    chunks: Iterable[bytes | memoryview],
) -> int:
    """Writes one file of `tensors` (their dtype, shape and bytes); `chunks` are
    their bytes. Returns how many."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": (end, end + size),
        }
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for chunk in chunks:
            stream.write(chunk)
            HEARTBEAT.beat()
        assert stream.tell() == 8 + len(text) + end, file
    return end


# with an entry for each layer
_LISTED = ("layer_types", "mlp_layer_types", "no_rope_layers")
_NUMBERS = ("mlp_only_layers",)  # with the numbers of layers
_BY_NUMBER = ("per_layer_config",)  # what is special about a layer, by its number
# how many layers come before another kind begins
_FIRST = ("max_window_layers", "first_k_dense_replace")
# Fields of a module that a cut changes, or that make no difference here.
_CHANGED = {
    *(
        "layer_idx",
        "in_features",
        "out_features",
        "intermediate_size",
        "num_heads",
        "num_attention_heads",
    ),
    *("num_key_value_heads", "op_size", "training"),
    # for layers that share keys: no model that has them gets here
    "store_full_length_kv",
}


def mended(decoder: Decoder, cut: Cut) -> dict[str, Any]:
    """config.json with the sizes and layer lists of what stays."""
    whole = copy.deepcopy(decoder.checkpoint.stored_config)
    section = (
        whole["text_config"]
        if architecture_of(decoder.checkpoint).text_config
        else whole
    )
    if cut.unit == "channels":
        section["intermediate_size"] = len(cut.kept())
    elif cut.unit == "heads":
        shared = (
            decoder.config.num_attention_heads // decoder.config.num_key_value_heads
        )
        groups = len(cut.kept())
        linear = decoder.linears(0)["self_attn.o_proj"]
        section |= {
            "num_attention_heads": groups * shared,
            "num_key_value_heads": groups,
        }
        section["head_dim"] = linear.in_features // decoder.config.num_attention_heads
    else:
        kept = cut.kept()
        changed: dict[str, Any] = {"num_hidden_layers": len(kept)}
        # also a default that the architecture derives from a layer's number
        for name in _LISTED:
            values = getattr(decoder.config, name, None)
            if isinstance(values, list | tuple) and len(values) == cut.of:
                changed[name] = [values[layer] for layer in kept]
        for name, value in section.items():
            if name in _NUMBERS and isinstance(value, list):
                changed[name] = [
                    number for number, layer in enumerate(kept) if layer in value
                ]
            elif name in _BY_NUMBER and isinstance(value, dict):
                special = {int(layer): each for layer, each in value.items()}
                changed[name] = {
                    str(number): special[layer]
                    for number, layer in enumerate(kept)
                    if layer in special
                }
            elif name in _FIRST and isinstance(value, int):
                changed[name] = sum(layer < value for layer in kept)
        section |= changed
    return whole


def check_built(decoder: Decoder, cut: Cut, kept: Mapping[str, Slice | None]) -> None:
    """Raises InputError unless the library builds a model of the very tensors that
    stay, each layer of its old kind."""
    from transformers import AutoModel

    settings, architecture = mended(decoder, cut), architecture_of(decoder.checkpoint)
    if architecture.text_config:
        settings = settings["text_config"]
    file = decoder.checkpoint.config_file
    try:
        config = type(decoder.config).from_dict(settings)
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            layers = AutoModel.from_config(config).eval().layers
        if architecture.experts is not None:
            separate(layers, architecture.experts)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InputError(
            f"{file}: with fewer {cut.unit} it is no model: {one_line(error)}"
        ) from error
    shapes = {each.name: each.shape for each in kept.values() if each is not None}
    sources = cut.kept() if cut.unit == "layers" else range(len(decoder))
    for number, (source, layer) in enumerate(zip(sources, layers, strict=True)):
        for name, tensor in layer.state_dict().items():
            written = decoder.tensor_name(number, name)
            if shapes.get(written) != tuple(tensor.shape):
                raise InputError(
                    f"{file}: with fewer {cut.unit}, {written} would be"
                    f" {tuple(tensor.shape)}, and {shapes.get(written)} stays of it"
                )
        modules = dict(decoder.modules[source].named_modules())
        for name, module in layer.named_modules():
            for field, value in vars(module).items():
                if field in _CHANGED or not isinstance(
                    value, bool | int | float | str | None
                ):
                    continue
                before = getattr(modules[name], field, value)
                if before != value:
                    raise InputError(
                        f"{file}: with fewer {cut.unit}, layer {source} would be of"
                        f" another kind: {name}.{field} {value!r}, not {before!r}"
                    )
