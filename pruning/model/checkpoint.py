"""A checkpoint's safetensors files: tensors are read one at a time, never a whole
model.

Reads are memory-mapped and unmapped again at once, so that resident memory stays small.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from evaluator.checkpoints import tensors
from evaluator.checkpoints.files import check_files, check_no_code
from evaluator.checkpoints.tensors import INDEX, NOT_FINITE, SINGLE
from evaluator.core.errors import InputError, of_kind, parse, read_bytes
from evaluator.core.liveness import HEARTBEAT

# what can be pruned
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Checkpoint:
    """A directory with config.json and model.safetensors, or shards and their index."""

    def __init__(self, directory: Path) -> None:
        """Read the config and the headers, but no weights. Raises InputError naming
        directory, file or tensor."""
        self.directory = directory
        if not directory.is_dir():
            raise InputError(f"{directory}: no such checkpoint directory")
        check_files(directory)
        file = directory / "config.json"
        self.config: dict[str, Any] = of_kind(
            parse(read_bytes(file), str(file)), dict, str(file)
        )
        check_no_code(file, self.config)
        single, index = directory / SINGLE, directory / INDEX
        # whatever other weights lie beside it
        alone = single.exists() and not index.exists()
        found = (
            tensors.read_header(single) if alone else tensors.read_tensors(directory)
        )
        self.entries = {entry.name: entry for entry in found}
        self.files = tuple(sorted({entry.file for entry in found}))  # the shards
        self.index = index if index.exists() and self.files != (single,) else None

    def _map(self, entry: tensors.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if entry.size == 0:
            return np.empty(0, dtype=np.uint8)
        # Copy-on-write: torch takes no array that cannot be written.
        return np.memmap(
            entry.file,
            dtype=np.uint8,
            mode="c",
            offset=entry.start,
            shape=(entry.size,),
        )

    def entry(self, name: str) -> tensors.Tensor:
        """Where a tensor lies. Raises InputError if it is missing or has a type that
        cannot be pruned."""
        entry = self.entries.get(name)
        if entry is None:
            raise InputError(f"{self.directory}: tensor {name} is missing")
        if entry.dtype not in FLOATS:
            raise InputError(
                f"{entry.file}: tensor {name} has type {entry.dtype};"
                f" {', '.join(FLOATS)} are read"
            )
        return entry

    def read(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """A copy of one tensor, in `dtype` or else that of the file."""
        HEARTBEAT.beat()
        entry = self.entry(name)
        mapped = (
            torch.from_numpy(self._map(entry))
            .view(FLOATS[entry.dtype])
            .view(entry.shape)
        )
        return mapped.to(dtype or mapped.dtype, copy=True)

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Copies of the rows `ids` of a matrix: an embedding table is never held
        whole."""
        entry = self.entry(name)
        rows, columns = entry.shape
        dtype = FLOATS[entry.dtype]
        table = self._map(entry).reshape(rows, columns * dtype.itemsize)
        return (
            torch.from_numpy(np.array(table[ids.numpy()]))
            .view(dtype)
            .view(len(ids), columns)
        )

    def check_finite(self) -> None:
        """Raises InputError naming the first tensor, in file order, that holds a NaN
        or an infinity."""
        for entry in sorted(
            self.entries.values(), key=lambda entry: (entry.file, entry.start)
        ):
            for _ in entry.chunks() if entry.dtype in NOT_FINITE else ():
                HEARTBEAT.beat()
