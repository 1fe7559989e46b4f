"""The smaller checkpoint's weights: a shard for each of the source's that keeps a tensor, written tensor by tensor."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from evaluator.checkpoints.tensors import INDEX, SINGLE
from evaluator.checkpoints.tensors import Tensor as Entry
from pruning.model.checkpoint import Checkpoint
from pruning.pulse import PULSE
from pruning.structured.cut import Slice


def write(checkpoint: Checkpoint, kept: Mapping[str, Slice | None], config: Mapping[str, Any], folder: Path) -> None:
    """Fill `folder` with shards, their index and config.json. Memory holds one tensor that was cut, or a chunk."""
    shards = [
        [(entry, part) for entry in entries if (part := kept[entry.name]) is not None]
        for entries in _by_file(checkpoint)
    ]
    shards = [shard for shard in shards if shard]
    names = [f"model-{number + 1:05}-of-{len(shards):05}.safetensors" for number in range(len(shards))]
    if len(shards) == 1:
        names = [SINGLE]
    homes: dict[str, str] = {}
    total = 0
    for name, shard in zip(names, shards, strict=True):
        total += _write_shard(checkpoint, shard, folder / name)
        homes |= {part.name: name for _, part in shard}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(homes.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def content(checkpoint: Checkpoint, entry: Entry, part: Slice) -> Iterator[bytes | memoryview]:
    """The bytes of what stays of a tensor. Raises InputError for NaN and infinity."""
    if part.rows is None and part.columns is None:
        yield from entry.chunks()
        return
    weight = checkpoint.read(entry.name)
    for dimension, indices in enumerate((part.rows, part.columns)):
        if indices is not None:
            weight = weight.index_select(dimension, indices)
    yield weight.contiguous().view(torch.uint8).numpy().reshape(-1).data


def _by_file(checkpoint: Checkpoint) -> list[list[Entry]]:
    """The tensors of each file, in an order that keeps each aligned to its type."""
    entries = sorted(checkpoint.entries.values(), key=lambda entry: entry.start)
    return [
        sorted((entry for entry in entries if entry.file == file), key=lambda entry: -_width(entry))
        for file in checkpoint.files
    ]


def _width(entry: Entry) -> int:
    """Bytes of an element."""
    return entry.size // max(1, math.prod(entry.shape))


def _write_shard(checkpoint: Checkpoint, shard: list[tuple[Entry, Slice]], file: Path) -> int:
    """Writes one safetensors file; returns the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry, part in shard:
        size = _width(entry) * math.prod(part.shape) if part.shape != entry.shape else entry.size
        header[part.name] = {"dtype": entry.dtype, "shape": part.shape, "data_offsets": (end, end + size)}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for entry, part in shard:
            _copy(checkpoint, entry, part, stream)
        assert stream.tell() == 8 + len(text) + end, file
    return end


def _copy(checkpoint: Checkpoint, entry: Entry, part: Slice, stream: IO[bytes]) -> None:
    for chunk in content(checkpoint, entry, part):
        stream.write(chunk)
        PULSE.beat()
