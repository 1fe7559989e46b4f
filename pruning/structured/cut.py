"""The layers that a job takes out, and what stays of the checkpoint. `choose` walks
through the dense layers with the calibration text; the rest reads no weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from evaluator.core.errors import InputError, JobError
from pruning.config import PruneConfig
from pruning.layers.flow import Flow
from pruning.methods.patterns import Listed, Removed, format_ranges
from pruning.model.decoder import Decoder, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The layers that go, by their numbers in the source."""

    of: int  # how many there were
    gone: tuple[int, ...]
    # angular, of every block of so many layers, by its first
    distances: tuple[float, ...] | None = None

    def kept(self) -> tuple[int, ...]:
        return tuple(layer for layer in range(self.of) if layer not in self.gone)


@dataclass(frozen=True, slots=True)
class Slice:
    """What stays of a tensor."""

    name: str  # in the smaller checkpoint
    shape: tuple[int, ...]
    rows: Tensor | None = None  # that stay; None: all


def first_cut(decoder: Decoder, removed: Removed) -> Cut:
    """A cut of a job's size: listed layers, or the first. Raises InputError for no
    layer and another model's list."""
    directory, count = decoder.checkpoint.path, len(decoder)
    if isinstance(removed, Listed):
        if removed.layers[-1] >= count or len(removed.layers) == count:
            raise InputError(
                f"pattern: {format_ranges(removed.layers)}: {directory} has layers 0"
                f" to {count - 1}, and one must stay"
            )
        return Cut(of=count, gone=removed.layers)
    going = removed.count(count)
    if not going:
        raise InputError(
            f"sparsity: {removed.ratio}: of the {count} layers of {directory} none"
            " would go"
        )
    return Cut(of=count, gone=tuple(range(going)))


def slices(decoder: Decoder, cut: Cut) -> Mapping[str, Slice | None]:
    """What stays of every tensor; None: nothing. Raises InputError for a layer that
    config.json does not count."""
    new = {layer: number for number, layer in enumerate(cut.kept())}
    remains: dict[str, Slice | None] = {}
    for name, entry in decoder.checkpoint.tensors.items():
        place = _layer_of(decoder, name)
        if place is None:
            remains[name] = Slice(name, entry.shape)
            continue
        layer, rest = place
        remains[name] = None
        if layer in new:
            remains[name] = Slice(decoder.tensor_name(new[layer], rest), entry.shape)
    return remains


def _layer_of(decoder: Decoder, name: str) -> tuple[int, str] | None:
    """The layer that a tensor belongs to, and its name in there; None: to none."""
    beginning, _, _ = decoder.tensor_name(0, "").rpartition("0.")
    number, _, rest = name.removeprefix(beginning).partition(".")
    if not name.startswith(beginning) or not number.isdecimal():
        return None
    if int(number) >= len(decoder):
        raise InputError(
            f"{decoder.checkpoint.path}: tensor {name} is of a layer beyond the"
            f" {len(decoder)} of config.json"
        )
    return int(number), rest


def choose(
    config: PruneConfig, decoder: Decoder, flow: Flow | None, report: Progress
) -> Cut:
    """The listed layers, or the block of layers with the smallest angular distance
    (see `pruning.methods.removals`); `flow`: calibration, or None. Raises JobError if
    not finite."""
    first = first_cut(decoder, config.removed)
    if flow is None:
        return first
    count = len(first.gone)
    # that enter each layer, and that leave the last one
    states = [flow.ends() for _ in flow.layers(report, last=True)]
    states.append(flow.ends())
    distances = tuple(map(angular_distance, states, states[count:]))
    if not all(map(math.isfinite, distances)):
        raise JobError(
            "the residual stream is zero at a calibration text's last token: no angle"
            " can be measured"
        )
    start = distances.index(min(distances))
    gone = tuple(range(start, start + count))
    return Cut(of=len(decoder), gone=gone, distances=distances)


def angular_distance(one_NH: Tensor, other_NH: Tensor) -> float:
    """1/pi arccos of the cosine between two states of N texts, their mean (Gromov et
    al., eq. 7); NaN for a zero."""
    cosine_N = (one_NH * other_NH).sum(dim=1) / (
        one_NH.norm(dim=1) * other_NH.norm(dim=1)
    )
    return float(cosine_N.clamp(-1, 1).arccos().mean()) / math.pi
