"""The smaller checkpoint: config.json, and a shard for each of the source's that
keeps a tensor.

`check_built` proves that the library builds from config.json exactly what is
written. Shards are written tensor by tensor."""

import copy
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import write_json
from evaluator.checkpoints.tensors import SINGLE, Tensor, write_index
from evaluator.core.errors import Document, InputError, Json, one_line
from evaluator.core.liveness import HEARTBEAT
from pruning.model.architectures import architecture_of, separate
from pruning.model.decoder import Decoder
from pruning.structured.cut import Cut, Slice


def write(
    checkpoint: Checkpoint,
    kept: Mapping[str, Slice | None],
    config: Document,
    folder: Path,
) -> None:
    """Fill `folder` with shards, their index and config.json. Memory holds one
    tensor that was cut, or a chunk."""
    tensors = sorted(checkpoint.tensors.values(), key=lambda tensor: tensor.start)
    tensors.sort(key=lambda tensor: -_width(tensor))  # each is aligned to its type
    shards: dict[Path, list[tuple[Tensor, Slice]]] = {}
    for tensor in tensors:
        part = kept[tensor.name]
        if part is not None:
            shards.setdefault(tensor.file, []).append((tensor, part))
    homes: dict[str, str] = {}
    total = 0
    for number, file in enumerate(sorted(shards), start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            name = SINGLE
        sizes = {}
        for tensor, part in shards[file]:
            size = _width(tensor) * math.prod(part.shape)
            sizes[part.name] = (tensor.dtype, part.shape, size)
            homes[part.name] = name
        contents = (content(tensor, part) for tensor, part in shards[file])
        total += write_safetensors(folder / name, sizes, chain.from_iterable(contents))
    if len(shards) > 1:
        write_index(folder, homes, total)
    write_json(folder / "config.json", config)


def content(tensor: Tensor, part: Slice) -> Iterator[bytes | memoryview]:
    """The bytes of what stays of a tensor. Raises InputError for NaN and infinity."""
    if part.rows is None:
        yield from tensor.chunks()
        return
    weight = tensor.read().index_select(0, part.rows)
    yield weight.contiguous().view(torch.uint8).numpy().reshape(-1).data


def differences(
    made: Checkpoint, source: Checkpoint, kept: Mapping[str, Slice | None]
) -> Iterator[str]:
    """Every tensor of `made` that is not what stays of the source's."""
    expected = {part.name for part in kept.values() if part is not None}
    for name in sorted(expected ^ made.tensors.keys()):
        problem = "missing" if name in expected else "one too many"
        yield f"{made.path}: tensor {name} is {problem}"
    for name, part in kept.items():
        tensor = None if part is None else made.tensors.get(part.name)
        if part is None or tensor is None:
            continue
        stays = content(source.tensors[name], part)
        if tensor.shape != part.shape or digest(tensor.chunks()) != digest(stays):
            yield (
                f"{tensor.file}: tensor {part.name} is not what stays of {name} of"
                f" {source.path}"
            )


def digest(chunks: Iterable[bytes | memoryview]) -> bytes:
    whole = hashlib.sha256()
    for chunk in chunks:
        whole.update(chunk)
    return whole.digest()


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
    header: Json = {"__metadata__": {"format": "pt"}}
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


# Fields of a module that a cut changes, or that make no difference here. The last one
# is for layers that share keys: no model that has them gets here.
_CHANGED = {"layer_idx", "training", "store_full_length_kv"}


def mended(decoder: Decoder, cut: Cut) -> Json:
    """config.json with the number and the lists of the layers that stay."""
    whole = copy.deepcopy(decoder.checkpoint.stored_config)
    section, config = whole, decoder.config
    if architecture_of(decoder.checkpoint).text_config:
        section = whole["text_config"]
    kept = cut.kept()
    section["num_hidden_layers"] = len(kept)
    section |= _of_layers(section, config, kept, cut.of)
    return whole


def _of_layers(section: Document, config: Any, kept: Sequence[int], count: int) -> Json:
    """The fields that say something about single layers, for those that stay."""
    changed: Json = {}
    # with an entry for each layer; also a default that the architecture derives from a
    # layer's number
    for name in ("layer_types", "mlp_layer_types", "no_rope_layers"):
        values = getattr(config, name, None)
        if isinstance(values, list | tuple) and len(values) == count:
            changed[name] = [values[layer] for layer in kept]
    sparse = section.get("mlp_only_layers")  # numbers of layers
    if sparse is not None:
        places = [number for number, layer in enumerate(kept) if layer in sparse]
        changed["mlp_only_layers"] = places
    special = section.get("per_layer_config")  # by a layer's number
    if special is not None:
        by_number = {}
        for number, layer in enumerate(kept):
            if str(layer) in special:
                by_number[str(number)] = special[str(layer)]
        changed["per_layer_config"] = by_number
    # how many layers come before another kind begins
    for name in ("max_window_layers", "first_k_dense_replace"):
        first = section.get(name)
        if first is not None:
            changed[name] = sum(layer < first for layer in kept)
    return changed


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
        with torch.device("meta"), warnings.catch_warnings(action="ignore"):
            layers = AutoModel.from_config(config).eval().layers
        if architecture.experts is not None:
            separate(layers, architecture.experts)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise InputError(
            f"{file}: with fewer layers it is no model: {one_line(error)}"
        ) from error
    shapes = {part.name: part.shape for part in kept.values() if part is not None}
    for number, (source, layer) in enumerate(zip(cut.kept(), layers, strict=True)):
        for name, tensor in layer.state_dict().items():
            written = decoder.tensor_name(number, name)
            if shapes.get(written) != tuple(tensor.shape):
                raise InputError(
                    f"{file}: with fewer layers, {written} would be"
                    f" {tuple(tensor.shape)}, and {shapes.get(written)} stays of it"
                )
        before = _settings(decoder.modules[source])
        for place, value in _settings(layer).items():
            if before.get(place, value) != value:
                raise InputError(
                    f"{file}: with fewer layers, layer {source} would be of"
                    f" another kind: {place} {value!r}, not {before[place]!r}"
                )


def _settings(layer: torch.nn.Module) -> Json:
    """What a layer's modules were built with, by module and field."""
    settings = {}
    for name, module in layer.named_modules():
        for field, value in vars(module).items():
            plain = isinstance(value, bool | int | float | str | None)
            if plain and field not in _CHANGED:
                settings[f"{name}.{field}"] = value
    return settings
