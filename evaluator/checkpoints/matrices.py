"""The values of a matrix of the files, row by row, dequantised if necessary.

Three layouts are read, by their tensors' names and shapes:

- compressed-tensors, packed: `weight_packed` [out, in / k] has k columns in an int32,
  from its lowest bits on. The offset is half the range, or `weight_zero_point` [out /
  k, groups], packed along its rows. `weight_scale` is [out, groups].
- plain: `weight` [out, in] of int8 or float8, with `weight_scale` or `weight_scale_inv`
  of one value, one for each row, or one for each block; of floats, as they are;
- GPTQ: `qweight` [in / 8, out], packed along its rows. AWQ: `qweight` [in, out / 8],
  packed along its columns in AWQ's order. Both have `scales` and `qzeros` [groups,
  ...].

The arithmetic is this module's own: it checks vLLM's, and compressed-tensors' is what
vLLM loads with.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

# of a checkpoint's files by name, as slices that are read on demand
Tensors = Mapping[str, Any]
# of the columns in an int32, from the lowest bits on
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
# The tensors of a quantised matrix; the first one that is there holds its values.
_PARTS = ("weight_packed", "qweight", "weight", "weight_shape", "weight_scale", "weight_scale_inv",
          "weight_zero_point", "scales", "qzeros", "g_idx")  # fmt: skip
_PLAIN = {"I8", "F8_E4M3", "F8_E5M2"}
_FLOATS = {"F32", "F16", "BF16"}


@contextmanager
def opened(files: Iterable[str | Path]) -> Iterator[Tensors]:
    """The tensors of safetensors files within."""
    tensors: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in files:
            held = stack.enter_context(safe_open(file, framework="pt"))
            tensors |= {name: held.get_slice(name) for name in held.keys()}  # noqa: SIM118  (not a dict)
        yield tensors


class Matrix:
    """A matrix [out, in] of the files. Raises LookupError where there is none."""

    def __init__(self, tensors: Tensors, base: str) -> None:
        names = {name: f"{base}.{name}" for name in _PARTS}
        self._parts = {
            name: tensors[whole] for name, whole in names.items() if whole in tensors
        }
        if not self._parts:
            raise LookupError(base)
        self._stored = next(iter(self._parts))  # in the order of _PARTS
        self.shape = self._shape()

    def rows(self, first: int, stop: int) -> Tensor | None:
        """The values of some rows, in float32 [rows, in]; None where the layout is
        not known here."""
        if self._stored == "weight":
            return self._plain(first, stop)
        if self._stored == "weight_packed":
            return self._packed(first, stop)
        return self._columns(first, stop)

    def _shape(self) -> tuple[int, int]:
        if self._stored == "weight":
            out, inputs = self._parts["weight"].get_shape()
        elif self._stored == "weight_packed":
            out, inputs = (int(size) for size in self._parts["weight_shape"][:])
        else:
            rows, columns = self._parts["qweight"].get_shape()
            out = self._parts["scales"].get_shape()[1]
            inputs = rows * 8 if columns == out else rows
            if "g_idx" in self._parts:  # 8 bits are stored in the same way
                inputs = self._parts["g_idx"].get_shape()[0]
        return out, inputs

    def _plain(self, first: int, stop: int) -> Tensor | None:
        weight = self._parts["weight"]
        scales = self._parts.get("weight_scale", self._parts.get("weight_scale_inv"))
        if scales is None and weight.get_dtype() not in _FLOATS:
            return None
        whole: Tensor = weight[first:stop].float()
        if scales is None:
            return whole
        shape = tuple(scales.get_shape())
        out, inputs = self.shape
        if shape in ((), (1,)):
            one: Tensor = scales[...]
            return whole * one.reshape(()).float()
        if shape[0] == out:
            of_rows: Tensor = scales[first:stop].float()
            return whole * of_rows.reshape(stop - first, -1)[:, :1]
        if len(shape) == 2 and min(shape) > 0:
            height, width = _block(out, shape[0]), _block(inputs, shape[1])
            rows: Tensor = scales[:].float()[torch.arange(first, stop) // height]
            return whole * rows.repeat_interleave(width, 1)[:, :inputs]
        return None

    def _packed(self, first: int, stop: int) -> Tensor | None:
        packed = self._parts["weight_packed"]
        out, inputs = self.shape
        each = -(-inputs // packed.get_shape()[1])  # columns in an int32
        if each not in (4, 8):
            return None
        bits = 32 // each
        whole = _unpacked(packed[first:stop], bits).flatten(1)[:, :inputs]
        scales: Tensor = self._parts["weight_scale"][first:stop].float()
        zeros: Tensor | float = float(2 ** (bits - 1))
        if "weight_zero_point" in self._parts:
            down = self._parts["weight_zero_point"][:].T  # [groups, out / k]
            zeros = _unpacked(down, bits).flatten(1)[:, :out].T[first:stop]
            zeros = zeros.repeat_interleave(inputs // zeros.shape[1], 1)
        return (whole - zeros) * scales.repeat_interleave(inputs // scales.shape[1], 1)

    def _columns(self, first: int, stop: int) -> Tensor | None:
        qweight = self._parts["qweight"]
        scales: Tensor = self._parts["scales"][:, first:stop].float()
        out, inputs = self.shape
        # GPTQ: symmetric, as in vLLM; g_idx has each row's group
        if qweight.get_shape()[1] == out:
            bits = 32 * int(qweight.get_shape()[0]) // inputs
            whole = _unpacked(qweight[:, first:stop].T.contiguous(), bits).flatten(1)
            groups = torch.arange(inputs) // (inputs // scales.shape[0])
            if "g_idx" in self._parts:
                groups = self._parts["g_idx"][:].long()
            values: Tensor = (whole - 2 ** (bits - 1)) * scales[groups].T
            return values
        low, high = first // 8, -(-stop // 8)
        inside = slice(first - 8 * low, stop - 8 * low)
        order = list(_AWQ_ORDER)
        qzeros = self._parts["qzeros"]
        whole = _unpacked(qweight[:, low:high], 4)[..., order].flatten(1)[:, inside]
        zeros = _unpacked(qzeros[:, low:high], 4)[..., order].flatten(1)[:, inside]
        group = inputs // scales.shape[0]
        values = whole - zeros.repeat_interleave(group, 0)
        return (values * scales.repeat_interleave(group, 0)).T


def is_quantised(tensors: Tensors, base: str) -> bool:
    if f"{base}.weight_packed" in tensors:
        return f"{base}.weight_shape" in tensors and f"{base}.weight_scale" in tensors
    if f"{base}.qweight" in tensors:
        return f"{base}.scales" in tensors and f"{base}.qzeros" in tensors
    return (
        f"{base}.weight" in tensors and tensors[f"{base}.weight"].get_dtype() in _PLAIN
    )


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """int32 [...] -> float32 [..., 32 / bits], from the lowest bits on."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values: Tensor = ((packed[..., None] >> shifts) & (2**bits - 1)).float()
    return values


def _block(size: int, blocks: int) -> int:
    """The length of `blocks` equal blocks that cover `size`, the last one perhaps in
    part: the next power of two."""
    least = -(-size // blocks)
    length = 1
    while length < least:
        length *= 2
    return length if -(-size // length) == blocks else least
