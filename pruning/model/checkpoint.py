"""A checkpoint's safetensors as files with an index: tensors are read one at a time, never a whole model.

The headers are parsed here, and not by the safetensors package, because the export patches pruned bytes in place
into a copy of a shard and so needs their offsets (format: an 8-byte little-endian length, a JSON header, the data).
Reads are memory-mapped and unmapped again at once, so that resident memory holds only what is in use.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from evaluator.errors import InputError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # what can be pruned
# The bits of a float's exponent.
_EXPONENTS: dict[str, Any] = {
    "F16": np.uint16(0x7C00),
    "BF16": np.uint16(0x7F80),
    "F32": np.uint32(0x7F800000),
    "F64": np.uint64(0x7FF0000000000000),
}
_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LONGEST_HEADER = 100_000_000  # the format's own limit, bytes
_CHUNK = 1 << 21  # elements that the finite check holds at a time


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies."""

    name: str
    file: Path
    dtype: str  # as safetensors spells it: "BF16"
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int


def _refuse(file: Path, why: str) -> NoReturn:
    raise InputError(f"{file}: {why}")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises InputError that names the file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        _refuse(file, "no such file")
    except OSError as error:
        _refuse(file, f"cannot be read: {error.strerror}")
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        _refuse(file, f"is not JSON: {error}")
    if not isinstance(value, dict):
        _refuse(file, "is not a JSON object")
    return value


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of one safetensors file, by name. Raises InputError for a missing, truncated or broken file."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _LONGEST_HEADER + 1
            text = stream.read(length) if length <= _LONGEST_HEADER else b""
    except FileNotFoundError:
        _refuse(file, "no such file")
    except OSError as error:
        _refuse(file, f"cannot be read: {error.strerror}")
    if not text or len(text) != length:
        _refuse(file, f"is truncated or not safetensors ({size} bytes, no complete header)")
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        entries = {
            name: Entry(
                name,
                file,
                value["dtype"],
                tuple(value["shape"]),
                8 + length + value["data_offsets"][0],
                8 + length + value["data_offsets"][1],
            )
            for name, value in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _refuse(file, f"has a broken safetensors header: {error}")
    end = max((entry.end for entry in entries.values()), default=8 + length)
    if end != size:
        _refuse(file, f"is truncated or damaged: {size} bytes, its header asks for {end}")
    for entry in entries.values():
        bytes_each = _SIZES.get(entry.dtype, 1)
        if entry.dtype in _SIZES and entry.end - entry.begin != bytes_each * int(np.prod(entry.shape, dtype=np.int64)):
            _refuse(file, f"tensor {entry.name}: {entry.end - entry.begin} bytes do not hold its shape {entry.shape}")
    return entries


class Checkpoint:
    """A directory with config.json and model.safetensors, or shards and their index."""

    def __init__(self, directory: Path) -> None:
        """Read config and headers; no weights. Raises InputError naming directory, file or tensor."""
        self.directory = directory
        if not directory.is_dir():
            raise InputError(f"{directory}: no such checkpoint directory")
        self.config: dict[str, Any] = read_json(directory / "config.json")
        self.files: tuple[Path, ...]  # the shards, in name order
        self.entries: dict[str, Entry] = {}
        if (directory / SINGLE).exists():
            self.index: Path | None = None
            self.files = (directory / SINGLE,)
            self.entries = read_header(directory / SINGLE)
        elif (directory / INDEX).exists():
            self.index = directory / INDEX
            self.files, self.entries = self._read_shards(self.index)
        else:
            raise InputError(f"{directory}: holds neither {SINGLE} nor {INDEX} (only safetensors is read)")

    @staticmethod
    def _read_shards(index: Path) -> tuple[tuple[Path, ...], dict[str, Entry]]:
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            _refuse(index, "field weight_map: missing or empty")
        names = sorted({str(name) for name in weight_map.values()})
        for name in names:
            if Path(name).name != name:
                _refuse(index, f"field weight_map: {name!r} is not a plain file name")
        headers = {name: read_header(index.parent / name) for name in names}
        for tensor, name in weight_map.items():
            if tensor not in headers[name]:
                _refuse(index, f"field weight_map: tensor {tensor} is not in {name}")
        return tuple(index.parent / name for name in names), {
            tensor: headers[name][tensor] for tensor, name in weight_map.items()
        }

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(file.stat().st_size for file in self.files)

    def _map(self, entry: Entry) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if entry.end == entry.begin:
            return np.empty(0, dtype=np.uint8)
        # Copy-on-write: torch takes no array that cannot be written.
        return np.memmap(entry.file, dtype=np.uint8, mode="c", offset=entry.begin, shape=(entry.end - entry.begin,))

    def entry(self, name: str) -> Entry:
        """Raises InputError if the checkpoint lacks the tensor or holds it in a type that is not pruned."""
        entry = self.entries.get(name)
        if entry is None:
            raise InputError(f"{self.directory}: tensor {name} is missing")
        if entry.dtype not in FLOATS:
            raise InputError(f"{entry.file}: tensor {name} has type {entry.dtype}; {', '.join(FLOATS)} are read")
        return entry

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of one tensor, in `dtype` or else that of the file."""
        entry = self.entry(name)
        mapped = torch.from_numpy(self._map(entry)).view(FLOATS[entry.dtype]).view(entry.shape)
        return mapped.to(dtype or mapped.dtype, copy=True)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Copies of the rows `ids` of a matrix: an embedding table is never held whole."""
        entry = self.entry(name)
        rows, columns = entry.shape
        dtype = FLOATS[entry.dtype]
        table = self._map(entry).reshape(rows, columns * dtype.itemsize)
        return torch.from_numpy(np.array(table[ids.numpy()])).view(dtype).view(len(ids), columns)

    def check_finite(self) -> None:
        """Raises InputError naming the first tensor, in file order, that holds a NaN or an infinity."""
        for entry in sorted(self.entries.values(), key=lambda entry: (entry.file, entry.begin)):
            exponent = _EXPONENTS.get(entry.dtype)
            if exponent is None:
                continue
            # Not finite: all bits of the exponent are set. Taken as integers, which is many times faster.
            size = exponent.nbytes
            for begin in range(entry.begin, entry.end, _CHUNK * size):
                count = min(_CHUNK, (entry.end - begin) // size)
                bits = np.memmap(entry.file, exponent.dtype, "r", offset=begin, shape=count)
                masked = bits & exponent
                if masked.max() == exponent:
                    bad = int(np.count_nonzero(masked == exponent))
                    _refuse(entry.file, f"tensor {entry.name} holds NaN or infinity ({bad} in one chunk)")
