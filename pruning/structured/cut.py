"""The parts that a job takes out, and the remainder of each tensor. Pure; no weights are read.

The layout tells where the heads and channels of a decoder layer are: in rows of some matrices, in columns of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from torch import Tensor

from evaluator.core.errors import InputError
from pruning.model.decoder import Decoder
from pruning.patterns import Listed, Removed, Unit, written

# Channels are removed in multiples of a power of two: the largest up to this one that divides their number and is at
# most a 32nd of that number:
# kernels and groups of quantised weights want what they had, and a share is kept within 3 percentage points.
_STEP = 128
_FINEST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The parts that go, by their numbers in the source."""

    unit: Unit
    of: int  # how many there were: layers, or key-value heads or channels of each layer
    gone: tuple[tuple[int, ...], ...]  # of each layer; for layers one list
    distances: tuple[float, ...] | None = None  # angular, of every block of so many layers, by its first

    def kept(self, layer: int = 0) -> tuple[int, ...]:
        """What stays of a layer, or the layers that stay."""
        gone = set(self.gone[layer])
        return tuple(part for part in range(self.of) if part not in gone)


@dataclass(frozen=True, slots=True)
class Slice:
    """What stays of a tensor."""

    name: str  # in the smaller checkpoint
    shape: tuple[int, ...]
    rows: Tensor | None = None  # that stay; None: all
    columns: Tensor | None = None


def count_gone(decoder: Decoder, removed: Removed) -> int:
    """How many parts go. Raises InputError for none, and for a list that is not of the model's layers."""
    if isinstance(removed, Listed):
        return len(_listed(decoder, removed))
    parts, directory = parts_of(decoder, removed.unit), decoder.checkpoint.directory
    step = _step(parts) if removed.unit == "channels" else 1
    count = removed.count(parts, step)
    if not count:
        what = {"layers": "layers", "heads": "key-value heads", "channels": f"channels (in steps of {step})"}
        raise InputError(f"sparsity: {removed.ratio}: of the {parts} {what[removed.unit]} of {directory} none would go")
    return count


def first_cut(decoder: Decoder, removed: Removed) -> Cut:
    """A cut of the sizes that a job's will have: the parts of a list, or the first ones. Raises InputError."""
    if isinstance(removed, Listed):
        return Cut(unit="layers", of=len(decoder), gone=(_listed(decoder, removed),))
    layers = 1 if removed.unit == "layers" else len(decoder)
    gone = tuple(range(count_gone(decoder, removed)))
    return Cut(unit=removed.unit, of=parts_of(decoder, removed.unit), gone=(gone,) * layers)


def slices(decoder: Decoder, cut: Cut) -> Mapping[str, Slice | None]:
    """What stays of every tensor of the checkpoint; None: nothing.

    Raises InputError for a tensor of a layer that config.json does not count.
    """
    return _without_layers(decoder, cut) if cut.unit == "layers" else _within_layers(decoder, cut)


def weights_left(decoder: Decoder, kept: Mapping[str, Slice | None]) -> float:
    """The share of the weights of the decoder layers' matrices that stays."""
    matrices = decoder.matrices()
    left = [kept[name] for name in matrices]
    return sum(each.shape[0] * each.shape[1] for each in left if each is not None) / sum(
        rows * columns for rows, columns in matrices.values()
    )


def _listed(decoder: Decoder, removed: Listed) -> tuple[int, ...]:
    count, directory = len(decoder), decoder.checkpoint.directory
    if removed.layers[-1] >= count:
        raise InputError(f"pattern: {written(removed.layers)}: {directory} has layers 0 to {count - 1}")
    if len(removed.layers) == count:
        raise InputError(f"pattern: {written(removed.layers)}: no layer of {directory} would stay")
    return removed.layers


def _step(parts: int) -> int:
    step = 1
    while step < _STEP and parts % (2 * step) == 0 and 2 * step * _FINEST <= parts:
        step *= 2
    return step


def _layer_of(decoder: Decoder, name: str) -> tuple[int, str] | None:
    """The layer that a tensor belongs to, and its name in there; None: to none."""
    beginning, _, _ = decoder.tensor_name(0, "").rpartition("0.")
    number, _, rest = name.removeprefix(beginning).partition(".")
    if not name.startswith(beginning) or not number.isdecimal():
        return None
    if int(number) >= len(decoder):
        raise InputError(
            f"{decoder.checkpoint.directory}: tensor {name} is of a layer beyond the {len(decoder)} of config.json"
        )
    return int(number), rest


def _without_layers(decoder: Decoder, cut: Cut) -> dict[str, Slice | None]:
    new = {layer: number for number, layer in enumerate(cut.kept())}
    found: dict[str, Slice | None] = {}
    for name, entry in decoder.checkpoint.entries.items():
        place = _layer_of(decoder, name)
        if place is None:
            found[name] = Slice(name, entry.shape)
        elif place[0] in new:
            found[name] = Slice(decoder.tensor_name(new[place[0]], place[1]), entry.shape)
        else:
            found[name] = None
    return found


def _within_layers(decoder: Decoder, cut: Cut) -> dict[str, Slice | None]:
    found: dict[str, Slice | None] = {}
    rows, columns = rows_of(decoder, cut.unit), columns_of(decoder, cut.unit)
    for name, entry in decoder.checkpoint.entries.items():
        place = _layer_of(decoder, name)
        if place is None:
            found[name] = Slice(name, entry.shape)
            continue
        layer, rest = place
        module, _, parameter = rest.rpartition(".")
        of_rows = rows.get(module)  # of a weight and of a bias
        of_columns = columns.get(module) if parameter == "weight" else None
        kept = cut.kept(layer)
        row_I = None if of_rows is None else _indices(of_rows, kept)
        column_I = None if of_columns is None else _indices(of_columns, kept)
        shape = list(entry.shape)
        if row_I is not None:
            shape[0] = len(row_I)
        if column_I is not None:
            shape[1] = len(column_I)
        found[name] = Slice(name, tuple(shape), row_I, column_I)
    return found


def _indices(runs: Sequence[Run], kept: Sequence[int]) -> Tensor:
    """The rows or columns of the parts that stay."""
    part_K = torch.tensor(kept)
    return torch.cat([(run.first + part_K[:, None] * run.width + torch.arange(run.width)).flatten() for run in runs])


Within = Literal["heads", "channels"]
# Model types whose configuration may state the size of a head by itself, in transformers and in vLLM. Where it is
# derived from the model's width and the number of heads (qwen2 in vLLM), a model with fewer heads is another one.
_STATE_HEAD_SIZE = ("gemma2", "gemma3", "gemma3_text", "llama", "mistral", "phi3", "qwen3")
_BLOCK = {"heads": "self_attn", "channels": "mlp"}
# Names of a block's matrices: each by itself, or those that read the same input in one.
_LAYOUTS = {
    "heads": ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"}),
    "channels": ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"}),
}
_NAMED = 4  # matrices in an error: a layer of experts has hundreds
OUTPUT = {"heads": "self_attn.o_proj", "channels": "mlp.down_proj"}  # whose columns they are


@dataclass(frozen=True, slots=True)
class Run:
    """Parts side by side: part p has the `width` rows or columns from `first + p * width` on."""

    first: int
    width: int


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of a layer's attention."""

    groups: int  # key-value heads
    shared: int  # rows of the query heads that share one of them
    size: int  # rows of a head


def parts_of(decoder: Decoder, unit: Unit) -> int:
    """How many layers there are, or key-value heads or channels in each. Raises InputError where they cannot go."""
    if unit == "layers":
        return len(decoder)
    return _sizes(decoder).groups if unit == "heads" else _channels(decoder)


def rows_of(decoder: Decoder, unit: Unit) -> Mapping[str, Sequence[Run]]:
    """By module: the rows of a layer's parts. Raises InputError for a layer of another layout."""
    if unit == "channels":
        channels = _channels(decoder)
        one = Run(0, 1)
        return {"mlp.gate_proj": [one], "mlp.up_proj": [one], "mlp.gate_up_proj": [one, Run(channels, 1)]}
    sizes = _sizes(decoder)
    queries, keys = Run(0, sizes.shared), Run(0, sizes.size)
    after = sizes.groups * sizes.shared
    fused = [queries, Run(after, sizes.size), Run(after + sizes.groups * sizes.size, sizes.size)]
    of_each = {"self_attn.q_proj": [queries], "self_attn.k_proj": [keys], "self_attn.v_proj": [keys]}
    return of_each | {"self_attn.qkv_proj": fused}


def columns_of(decoder: Decoder, unit: Unit) -> Mapping[str, Sequence[Run]]:
    """By module: the columns of a layer's parts. Raises InputError for a layer of another layout."""
    if unit == "channels":
        return {OUTPUT[unit]: [Run(0, 1)]}
    return {OUTPUT[unit]: [Run(0, _sizes(decoder).shared)]}


def _channels(decoder: Decoder) -> int:
    shapes = _shapes(decoder, "channels")
    channels = shapes["down_proj"][1]
    rows = {"gate_proj": channels, "up_proj": channels, "gate_up_proj": 2 * channels}
    for name, wanted in rows.items():
        if name in shapes and shapes[name][0] != wanted:
            _refuse(decoder, "channels", f"{name} has {shapes[name][0]} rows, down_proj {channels} columns")
    return channels


def _sizes(decoder: Decoder) -> _Sizes:
    kind = decoder.checkpoint.config["model_type"]
    if kind not in _STATE_HEAD_SIZE:
        why = f"the size of a head must be a field of its own; it is for {', '.join(_STATE_HEAD_SIZE)}"
        _refuse(decoder, "heads", why)
    shapes = _shapes(decoder, "heads")
    heads, groups = decoder.config.num_attention_heads, decoder.config.num_key_value_heads
    wide = shapes["o_proj"][1]
    size = wide // heads
    rows = {"q_proj": wide, "k_proj": groups * size, "v_proj": groups * size, "qkv_proj": wide + 2 * groups * size}
    for name, wanted in rows.items():
        if name in shapes and shapes[name][0] != wanted:
            _refuse(decoder, "heads", f"{name} has {shapes[name][0]} rows, {heads} heads of {size} need {wanted}")
    return _Sizes(groups, heads // groups * size, size)


def _shapes(decoder: Decoder, unit: Within) -> dict[str, tuple[int, int]]:
    """Rows and columns of a block's matrices, the same in every layer."""
    block = f"{_BLOCK[unit]}."
    found: dict[str, tuple[int, int]] = {}
    for layer in range(len(decoder)):
        shapes = {
            name.removeprefix(block): (linear.out_features, linear.in_features)
            for name, linear in decoder.linears(layer).items()
            if name.startswith(block)
        }
        if set(shapes) not in _LAYOUTS[unit]:
            some = ", ".join([*shapes][:_NAMED]) + (" and others" if len(shapes) > _NAMED else "")
            _refuse(decoder, unit, f"layer {layer} has {some or 'no matrices'} in {_BLOCK[unit]}")
        if shapes != (found or shapes):
            _refuse(decoder, unit, f"they have other sizes in layer {layer}")
        found = shapes
    return found


def _refuse(decoder: Decoder, unit: Within, why: str) -> NoReturn:
    file, kind = decoder.checkpoint.directory / "config.json", decoder.checkpoint.config["model_type"]
    raise InputError(f"{file}: {unit} cannot be taken out of model_type {kind!r}: {why}")
