"""The safetensors files of a checkpoint, checked byte by byte before anything is loaded
from them.

The safetensors package checks a file as a whole. It does not tell a tensor's position,
which is read here, as bytes are digested in their order. The format: the header's
length in 8 bytes, little-endian; the header as JSON; the tensors' bytes.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError, safe_open

from evaluator.checkpoints.files import FileStates, is_plain, write_json
from evaluator.core.errors import (
    InputError,
    Json,
    field,
    of_kind,
    one_line,
    parse,
    read_bytes,
)
from evaluator.core.liveness import HEARTBEAT

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# The bits that are all set in a NaN or infinity: the exponent, and in F8_E4M3, which
# has no infinity, the mantissa too.
NOT_FINITE: Mapping[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("<u1", 0x7C),
    "F8_E4M3": ("<u1", 0x7F),
}
# what can be pruned, and torch's name of it
FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# bytes of a tensor that are held at a time; a multiple of every dtype's size
_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Where one tensor lies."""

    name: str
    file: Path
    dtype: str  # as safetensors spells it: "BF16"
    shape: tuple[int, ...]
    start: int  # bytes from the start of the file
    size: int  # bytes

    def chunks(self) -> Iterator[memoryview]:
        """The bytes, 16 MiB at a time in one buffer. Raises InputError for a short
        file, NaN and infinity."""
        buffer = memoryview(bytearray(min(_CHUNK, self.size)))
        try:
            with self.file.open("rb") as stream:
                stream.seek(self.start)
                for done in range(0, self.size, _CHUNK):
                    chunk = buffer[: min(_CHUNK, self.size - done)]
                    if stream.readinto(chunk) < len(chunk):
                        raise InputError(
                            f"{self.file}: became shorter while it was read"
                        )
                    if self.dtype in NOT_FINITE:
                        self._check_finite(chunk)
                    yield chunk
        except OSError as error:
            raise InputError(
                f"{self.file}: cannot be read ({error.strerror})"
            ) from error

    def _check_finite(self, chunk: memoryview) -> None:
        kind, mask = NOT_FINITE[self.dtype]
        if bool(((np.frombuffer(chunk, dtype=kind) & mask) == mask).any()):
            raise InputError(f"{self.file}: tensor {self.name!r} holds NaN or infinity")

    def stored(self) -> "torch.Tensor":
        """As it lies in the file, which is mapped: resident memory grows only by what
        is read of it."""
        with safe_open(self.file, framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(self.name)
            return tensor

    def read(self, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
        """A copy in memory, in `dtype` or else its own."""
        HEARTBEAT.beat()
        stored = self.stored()
        return stored.to(dtype or stored.dtype, copy=True)


def read_tensors(checkpoint: Path) -> list[Tensor]:
    """Every tensor, sorted by name. Raises InputError for a file or tensor that is
    missing, cut, twice or ambiguous."""
    index = checkpoint / INDEX
    if not index.is_file():
        return _by_name(read_header(_only_file(checkpoint)))
    document = parse(read_bytes(index), str(index))
    weight_map: Json = field(document, "weight_map", dict, str(index))
    shards = {
        of_kind(shard, str, f"{index}: weight_map[{name!r}]")
        for name, shard in weight_map.items()
    }
    if not shards:
        raise InputError(f"{index}: field 'weight_map' is empty")
    if SINGLE not in shards and (checkpoint / SINGLE).exists():
        raise InputError(
            f"{checkpoint}: holds {SINGLE} and an {INDEX} that names other files;"
            " remove one of them"
        )
    tensors: list[Tensor] = []
    for shard in sorted(shards):
        if not is_plain(shard) or not (checkpoint / shard).is_file():
            raise InputError(
                f"{index}: field 'weight_map' names {shard!r}, which is missing"
            )
        tensors += read_header(checkpoint / shard)
    tensors = _by_name(tensors)
    homes = {tensor.name: tensor.file.name for tensor in tensors}
    for name, shard in weight_map.items():
        if homes.get(name) != shard:
            raise InputError(
                f"{checkpoint / shard}: lacks tensor {name!r}, which {INDEX} places"
                " there"
            )
    return tensors


def _only_file(checkpoint: Path) -> Path:
    """The file of a checkpoint without an index."""
    if (checkpoint / SINGLE).exists():  # whatever other weights lie beside it
        return checkpoint / SINGLE
    check_listed(checkpoint)
    file = next(checkpoint.glob("*.safetensors"), None)
    if file is None:
        raise InputError(
            f"{checkpoint}: holds no *.safetensors file (weights are read from"
            " safetensors only)"
        )
    return file


def check_listed(checkpoint: Path) -> None:
    """Raises InputError for several files that no index lists: an engine would load
    them all."""
    count = len(list(checkpoint.glob("*.safetensors")))
    if count > 1 and not (checkpoint / INDEX).is_file():
        raise InputError(
            f"{checkpoint}: holds {count} *.safetensors files and no {INDEX} that lists"
            " them"
        )


def _by_name(tensors: Iterable[Tensor]) -> list[Tensor]:
    known: dict[str, Tensor] = {}
    for tensor in tensors:
        earlier = known.setdefault(tensor.name, tensor)
        if earlier is not tensor:
            raise InputError(
                f"{tensor.file}: tensor {tensor.name!r} is also in {earlier.file.name}"
            )
    return sorted(known.values(), key=lambda tensor: tensor.name)


def read_header(file: Path) -> list[Tensor]:
    """The tensors of one safetensors file. Raises InputError for a file that is
    missing, truncated or damaged."""
    try:
        with safe_open(file, framework="np"):  # whole, as the library sees it
            pass
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = parse(stream.read(length), f"{file}: header")
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{file}: truncated, or not a safetensors file ({one_line(error)})"
        ) from error
    header.pop("__metadata__", None)
    if not header:
        raise InputError(f"{file}: holds no tensor")
    tensors = []
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        tensor = Tensor(
            name=name,
            file=file,
            dtype=entry["dtype"],
            shape=tuple(entry["shape"]),
            start=8 + length + start,
            size=end - start,
        )
        tensors.append(tensor)
    return tensors


# What quantised matrices have beside their values: scales, zero points, orders, shapes.
BESIDE = re.compile(
    r"(scales?|_scale_inv|_scale_2|zero_point|qzeros|g_idx|_shape|\.SCB|_format|\.weight\.\w.*)$"
)


def count_weights(tensors: Iterable[Tensor], scheme: str | None) -> int:
    """The weights in a checkpoint's tensors. Quantised ones (`scheme`: "W4A16")
    count as if unpacked, without scales, zero points and, if a shape is stored,
    padding."""
    if scheme is None:
        return sum(math.prod(tensor.shape) for tensor in tensors)
    by_name = {tensor.name: tensor for tensor in tensors}
    bits = re.match(r"W(\d+)A", scheme)
    weights = 0
    for name, tensor in by_name.items():
        if BESIDE.search(name):
            continue
        stored = by_name.get(f"{name.removesuffix('_packed')}_shape")
        if stored is not None:
            kind = f"<i{stored.size // math.prod(stored.shape)}"
            shape = np.frombuffer(b"".join(stored.chunks()), kind)
            weights += math.prod(shape.tolist())
        elif tensor.dtype == "U8":  # FP4, NF4, MXFP4: two in a byte
            weights += 2 * tensor.size
        elif tensor.dtype == "I32" and bits is not None:
            weights += 8 * tensor.size // int(bits[1])
        else:
            weights += math.prod(tensor.shape)
    return weights


def write_index(folder: Path, homes: Mapping[str, str], size: int) -> None:
    """The file that says in which shard each tensor is; `size`: bytes of all."""
    weight_map = dict(sorted(homes.items()))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    write_json(folder / INDEX, index)


def identity(tensor: Tensor) -> bytes:
    """The part of a tensor that a digest covers before its bytes."""
    return json.dumps([tensor.name, tensor.dtype, list(tensor.shape)]).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What one read of all weights has shown: they are finite, and their digests."""

    states: FileStates  # of the files then: a proof holds while they are the same
    files: Mapping[str, str]  # sha256 of each safetensors file, by name
    weights: str  # sha256 over the digests of all tensors, whatever file they lie in
    written: bool = False  # by this run, so the manifest beside them is true


# What this run has proven, by absolute path: it spares later readers their own read.
PROVEN: dict[Path, Proof] = {}


def digests(files: Iterable[Path]) -> tuple[dict[str, str], str]:
    """sha256 of each safetensors file by its name, and of the sorted digests of all
    tensors. Raises InputError as `Tensor.chunks` does."""
    of_files: dict[str, str] = {}
    of_tensors: list[bytes] = []
    for file in sorted(files):
        tensors = read_header(file)
        tensors.sort(key=lambda tensor: (tensor.start, tensor.size))
        with file.open("rb") as stream:
            of_file = hashlib.sha256(stream.read(tensors[0].start))
        for tensor in tensors:
            of_tensor = hashlib.sha256(identity(tensor))
            for chunk in tensor.chunks():
                HEARTBEAT.beat()
                of_file.update(chunk)
                of_tensor.update(chunk)
            of_tensors.append(of_tensor.digest())
        of_files[file.name] = of_file.hexdigest()
    return of_files, hashlib.sha256(b"".join(sorted(of_tensors))).hexdigest()
