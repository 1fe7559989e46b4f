"""What is taken out of a model, and what stays of each of its tensors. Pure; no weights are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evaluator.core.errors import InputError
from pruning.model.decoder import Decoder
from pruning.patterns import Listed, Removed, Unit, written
from pruning.structured.layout import Run, columns_of, parts_of, rows_of

# Channels go in multiples of the largest power of two up to this that divides their number and is at most a 32nd of it:
# kernels and groups of quantised weights want what they had, and a share is kept within 3 percentage points.
_STEP = 128
_FINEST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is taken out, by the numbers that the parts have in the source."""

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
