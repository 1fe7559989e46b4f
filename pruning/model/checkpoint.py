"""A checkpoint's safetensors files: tensors are read one at a time, never a whole model.

Reads are memory-mapped and unmapped again at once, so that resident memory stays small."""

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from evaluator.checkpoints import tensors
from evaluator.checkpoints.files import check_files, check_no_code, is_plain
from evaluator.checkpoints.tensors import INDEX, NOT_FINITE, SINGLE
from evaluator.core.errors import InputError, parse
from evaluator.core.liveness import HEARTBEAT

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # what can be pruned
_CHUNK = 1 << 21  # elements that the finite check holds at a time


def _refuse(file: Path, why: str) -> NoReturn:
    raise InputError(f"{file}: {why}")


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object. Raises InputError that names the file."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        _refuse(file, "no such file")
    except OSError as error:
        _refuse(file, f"cannot be read: {error.strerror}")
    value = parse(text, str(file))
    if not isinstance(value, dict):
        _refuse(file, "is not a JSON object")
    return value


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor. Raises InputError for an index that does not say it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        _refuse(index, "field weight_map: missing or empty")
    shards = {tensor: str(name) for tensor, name in weight_map.items()}
    for name in sorted(set(shards.values())):
        if not is_plain(name):
            _refuse(index, f"field weight_map: {name!r} is not a plain file name")
    return shards


class Checkpoint:
    """A directory with config.json and model.safetensors, or shards and their index."""

    def __init__(self, directory: Path) -> None:
        """Read the config and the headers, but no weights. Raises InputError naming directory, file or tensor."""
        self.directory = directory
        if not directory.is_dir():
            raise InputError(f"{directory}: no such checkpoint directory")
        check_files(directory)
        self.config: dict[str, Any] = read_json(directory / "config.json")
        check_no_code(directory / "config.json", self.config)
        self.files: tuple[Path, ...]  # the shards, in name order
        self.entries: dict[str, tensors.Tensor] = {}
        self.index: Path | None = None
        shards = _weight_map(directory / INDEX) if (directory / INDEX).exists() else {}
        tensors.check_meant(directory, set(shards.values()) if shards else {SINGLE})
        if set(shards.values()) - {SINGLE}:
            self.index = directory / INDEX
            self.files = tuple(directory / name for name in sorted(set(shards.values())))
            headers = {file.name: {entry.name: entry for entry in tensors.read_header(file)} for file in self.files}
            for tensor, name in shards.items():
                if tensor not in headers[name]:
                    _refuse(self.index, f"field weight_map: tensor {tensor} is not in {name}")
                self.entries[tensor] = headers[name][tensor]
        elif (directory / SINGLE).exists() or shards:
            self.files = (directory / SINGLE,)
            self.entries = {entry.name: entry for entry in tensors.read_header(directory / SINGLE)}
        else:
            raise InputError(f"{directory}: holds neither {SINGLE} nor {INDEX} (only safetensors is read)")

    def _map(self, entry: tensors.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if entry.size == 0:
            return np.empty(0, dtype=np.uint8)
        # Copy-on-write: torch takes no array that cannot be written.
        return np.memmap(entry.file, dtype=np.uint8, mode="c", offset=entry.start, shape=(entry.size,))

    def entry(self, name: str) -> tensors.Tensor:
        """Where a tensor lies. Raises InputError if it is missing or has a type that cannot be pruned."""
        entry = self.entries.get(name)
        if entry is None:
            raise InputError(f"{self.directory}: tensor {name} is missing")
        if entry.dtype not in FLOATS:
            raise InputError(f"{entry.file}: tensor {name} has type {entry.dtype}; {', '.join(FLOATS)} are read")
        return entry

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of one tensor, in `dtype` or else that of the file."""
        HEARTBEAT.beat()
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
        for entry in sorted(self.entries.values(), key=lambda entry: (entry.file, entry.start)):
            if entry.dtype not in NOT_FINITE:
                continue
            # As integers, which is many times faster; memory-mapped, twice as fast as by `Tensor.chunks`.
            kind, mask = NOT_FINITE[entry.dtype]
            size = np.dtype(kind).itemsize
            for start in range(entry.start, entry.start + entry.size, _CHUNK * size):
                count = min(_CHUNK, (entry.start + entry.size - start) // size)
                bits = np.memmap(entry.file, kind, "r", offset=start, shape=count)
                HEARTBEAT.beat()
                masked = bits & bits.dtype.type(mask)
                if masked.max() == mask:
                    bad = int(np.count_nonzero(masked == mask))
                    _refuse(entry.file, f"tensor {entry.name} holds NaN or infinity ({bad} in one chunk)")
