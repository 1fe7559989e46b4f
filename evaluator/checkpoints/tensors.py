"""The safetensors files of a checkpoint, checked byte by byte before anything is loaded
from them.

The headers are parsed here because the safetensors package reports neither a tensor's
position nor the damaged tensor. The format: the header's length in 8 bytes,
little-endian; the header as JSON; the tensors' bytes, without gaps.
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluator.checkpoints.files import FileStates, is_plain
from evaluator.core.errors import InputError, field, of_kind, parse, read_bytes
from evaluator.core.liveness import HEARTBEAT

if TYPE_CHECKING:
    import torch

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(
        (
            "F8_E4M3",
            "F8_E5M2",
            "F8_E8M0",
            "F8_E4M3FNUZ",
            "F8_E5M2FNUZ",
            "I8",
            "U8",
            "BOOL",
        ),
        8,
    ),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
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
_LONGEST_HEADER = 100_000_000  # bytes; the format's own limit
_MOST_DIMENSIONS = 64  # torch's own limit
# above every size and offset: products of larger numbers may take any time
_LARGEST = 2**63
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
                    filled = 0
                    while filled < len(chunk):
                        count = stream.readinto(chunk[filled:])
                        if not count:
                            raise InputError(
                                f"{self.file}: became shorter while it was read"
                            )
                        filled += count
                    if self.dtype in NOT_FINITE:
                        kind, mask = NOT_FINITE[self.dtype]
                        if bool(
                            ((np.frombuffer(chunk, dtype=kind) & mask) == mask).any()
                        ):
                            raise InputError(
                                f"{self.file}: tensor {self.name!r} holds NaN or"
                                " infinity"
                            )
                    yield chunk
        except OSError as error:
            raise InputError(
                f"{self.file}: cannot be read ({error.strerror})"
            ) from error

    def read(self, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
        """A copy in memory, in `dtype` or else its own, one of FLOATS."""
        import torch

        HEARTBEAT.beat()
        mapped = torch.from_numpy(self._mapped()).view(
            getattr(torch, FLOATS[self.dtype])
        )
        return mapped.view(self.shape).to(dtype or mapped.dtype, copy=True)

    def read_rows(self, ids: "torch.Tensor") -> "torch.Tensor":
        """Copies of the rows `ids` of a matrix: an embedding is never held whole."""
        import torch

        table = self._mapped().reshape(self.shape[0], -1)
        rows = torch.from_numpy(np.array(table[ids.numpy()]))
        return rows.view(getattr(torch, FLOATS[self.dtype])).view(len(ids), -1)

    def _mapped(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes, unmapped again at once, so that resident memory stays small."""
        if self.size == 0:
            return np.empty(0, dtype=np.uint8)
        # Copy-on-write: torch takes no array that cannot be written.
        return np.memmap(
            self.file, dtype=np.uint8, mode="c", offset=self.start, shape=(self.size,)
        )


def read_tensors(checkpoint: Path) -> list[Tensor]:
    """Every tensor, sorted by name. Raises InputError for a file or tensor that is
    missing, cut, twice or ambiguous."""
    index = checkpoint / INDEX
    files = sorted(checkpoint.glob("*.safetensors"))
    if not index.is_file():
        if (checkpoint / SINGLE) in files:  # whatever other weights lie beside it
            return _by_name(read_header(checkpoint / SINGLE))
        if not files:
            others = [
                file.name
                for each in ("*.bin", "*.pt", "*.pth", "*.gguf")
                for file in checkpoint.glob(each)
            ]
            hint = (
                f" (weights are read from safetensors only, not from {min(others)})"
                if others
                else ""
            )
            raise InputError(f"{checkpoint}: holds no *.safetensors file{hint}")
        if len(files) > 1:
            raise InputError(
                f"{checkpoint}: holds {len(files)} *.safetensors files and no"
                f" {INDEX} that lists them"
            )
        return _by_name(read_header(files[0]))
    document = parse(read_bytes(index), str(index))
    weight_map: dict[str, Any] = field(document, "weight_map", dict, str(index))
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
    for shard in sorted(shards):
        if not is_plain(shard) or not (checkpoint / shard).is_file():
            raise InputError(
                f"{index}: field 'weight_map' names {shard!r}, which is missing"
            )
    tensors = _by_name(
        tensor for shard in sorted(shards) for tensor in read_header(checkpoint / shard)
    )
    homes = {tensor.name: tensor.file.name for tensor in tensors}
    for name, shard in weight_map.items():
        if homes.get(name) != shard:
            raise InputError(
                f"{checkpoint / shard}: lacks tensor {name!r}, which {INDEX} places"
                " there"
            )
    return tensors


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
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            # A length that the file cannot hold is not read: it could request any
            # amount of memory.
            text = stream.read(length) if length <= min(size, _LONGEST_HEADER) else b""
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    if not text or len(text) < length:
        raise InputError(
            f"{file}: truncated, or not a safetensors file: {size} bytes hold no whole"
            " header"
        )
    header = of_kind(parse(text, f"{file}: header"), dict, f"{file}: header")
    entries = [
        (name, value) for name, value in header.items() if name != "__metadata__"
    ]
    if not entries:
        raise InputError(f"{file}: holds no tensor")
    tensors = [_tensor(file, name, entry, 8 + length) for name, entry in entries]
    expected = 8 + length
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.size)):
        if tensor.start != expected:
            raise InputError(
                f"{file}: tensor {tensor.name!r} starts at byte {tensor.start}, not at"
                f" {expected}"
            )
        expected += tensor.size
    if size < expected:
        raise InputError(
            f"{file}: truncated: {size} bytes of the {expected} that its header"
            " describes"
        )
    if size > expected:
        raise InputError(f"{file}: {size} bytes, but its header describes {expected}")
    return tensors


def _tensor(file: Path, name: str, entry: Any, data_start: int) -> Tensor:
    place = f"{file}: tensor {name!r}"
    dtype: str = field(entry, "dtype", str, place)
    shape, offsets = (
        field(entry, "shape", list, place),
        field(entry, "data_offsets", list, place),
    )
    if dtype not in _BITS:
        raise InputError(
            f"{place}: field 'dtype' is {dtype!r} (known: {', '.join(sorted(_BITS))})"
        )
    counts = all(
        type(number) is int and 0 <= number < _LARGEST for number in (*shape, *offsets)
    )
    if not counts or len(offsets) != 2 or len(shape) > _MOST_DIMENSIONS:
        raise InputError(
            f"{place}: fields 'shape' and 'data_offsets' are {shape} and {offsets}, not"
            " counts"
        )
    start, end = offsets
    if (end - start) * 8 != math.prod(shape) * _BITS[dtype]:
        raise InputError(
            f"{place}: {end - start} bytes do not hold shape {shape} of {dtype}"
        )
    return Tensor(
        name=name,
        file=file,
        dtype=dtype,
        shape=tuple(shape),
        start=data_start + start,
        size=end - start,
    )


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
    known = re.match(r"W(\d+)A", scheme)
    found = 0
    for name, tensor in by_name.items():
        stated = by_name.get(f"{name.removesuffix('_packed')}_shape")
        if BESIDE.search(name):
            continue
        if stated is not None:
            kind = f"<i{stated.size // math.prod(stated.shape)}"
            found += math.prod(np.frombuffer(b"".join(stated.chunks()), kind).tolist())
        elif tensor.dtype == "U8":  # FP4, NF4, MXFP4: two in a byte
            found += 2 * tensor.size
        elif tensor.dtype == "I32" and known is not None:
            found += 8 * tensor.size // int(known[1])
        else:
            found += math.prod(tensor.shape)
    return found


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
