"""The parts that a job takes out, and the remainder of each tensor. `choose` walks
through the dense layers with the calibration text; the rest is pure and reads no
weights.

The layout tells where the heads and channels of a decoder layer are: in rows of some
matrices, in columns of others.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

import torch
from torch import Tensor

from evaluator.checkpoints.manifests import Unit
from evaluator.checkpoints.tensors import Tensor as Entry
from evaluator.core.errors import InputError, JobError
from pruning.config import PruneConfig
from pruning.layers.flow import Flow
from pruning.methods.base import Statistic
from pruning.methods.patterns import Listed, Removed, format_ranges
from pruning.model.decoder import Decoder, Progress

# Channels are removed in multiples of a power of two: the largest up to this one that
# divides their number and is at most a 32nd of that number: kernels and groups of
# quantised weights want what they had, and a share is kept within 3 percentage points.
_STEP = 128
_FINEST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The parts that go, by their numbers in the source."""

    unit: Unit
    of: int  # how many there were: layers, or key-value heads or channels of each layer
    gone: tuple[tuple[int, ...], ...]  # of each layer; for layers one list
    # angular, of every block of so many layers, by its first
    distances: tuple[float, ...] | None = None

    def kept(self, layer: int = 0) -> tuple[int, ...]:
        """What stays of a layer, or the layers that stay."""
        gone = set(self.gone[layer])
        return tuple(part for part in range(self.of) if part not in gone)


@dataclass(frozen=True, slots=True)
class Slice:
    name: str  # in the smaller checkpoint
    shape: tuple[int, ...]
    rows: Tensor | None = None  # that stay; None: all
    columns: Tensor | None = None


def first_cut(decoder: Decoder, removed: Removed) -> Cut:
    """A cut of a job's sizes: listed parts, or the first. Raises InputError for no
    part and another model's list."""
    directory = decoder.checkpoint.path
    if isinstance(removed, Listed):
        count, listed = len(decoder), format_ranges(removed.layers)
        if removed.layers[-1] >= count or len(removed.layers) == count:
            raise InputError(
                f"pattern: {listed}: {directory} has layers 0 to {count - 1}, and one"
                " must stay"
            )
        return Cut(unit="layers", of=count, gone=(removed.layers,))
    parts = parts_of(decoder, removed.unit)
    step = _step(parts) if removed.unit == "channels" else 1
    count = removed.count(parts, step)
    if not count:
        steps = f" (in steps of {step})" if step > 1 else ""
        raise InputError(
            f"sparsity: {removed.ratio}: of the {parts} {removed.unit}{steps} of"
            f" {directory} none would go"
        )
    layers = 1 if removed.unit == "layers" else len(decoder)
    return Cut(unit=removed.unit, of=parts, gone=(tuple(range(count)),) * layers)


def _step(parts: int) -> int:
    step = 1
    while step < _STEP and parts % (2 * step) == 0 and 2 * step * _FINEST <= parts:
        step *= 2
    return step


def slices(decoder: Decoder, cut: Cut) -> Mapping[str, Slice | None]:
    """What stays of every tensor; None: nothing. Raises InputError for a layer that
    config.json does not count."""
    layout = None if cut.unit == "layers" else layout_of(decoder, cut.unit)
    new = {layer: number for number, layer in enumerate(cut.kept())}
    remains: dict[str, Slice | None] = {}
    for name, entry in decoder.checkpoint.tensors.items():
        place = _layer_of(decoder, name)
        if place is None:
            remains[name] = Slice(name, entry.shape)
            continue
        layer, rest = place
        if layout is not None:
            remains[name] = _within(layout, cut, layer, rest, entry)
        elif layer in new:
            remains[name] = Slice(decoder.tensor_name(new[layer], rest), entry.shape)
        else:
            remains[name] = None
    return remains


def _within(layout: "Layout", cut: Cut, layer: int, rest: str, entry: Entry) -> Slice:
    """What stays of a tensor of a layer, which is called `rest` there."""
    module, kept = rest.rpartition(".")[0], cut.kept(layer)
    shape, row_I, column_I = list(entry.shape), None, None
    if module in layout.rows:  # of a weight and of a bias
        row_I = _indices(layout.rows[module], kept)
        shape[0] = len(row_I)
    if rest == f"{OUTPUT[cut.unit]}.weight":
        column_I = _indices([layout.columns], kept)
        shape[1] = len(column_I)
    return Slice(entry.name, tuple(shape), row_I, column_I)


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


def _indices(runs: "Sequence[Run]", kept: Sequence[int]) -> Tensor:
    """The rows or columns of the parts that stay."""
    first_K1 = torch.tensor(kept)[:, None]
    indices = []
    for run in runs:
        place_KW = run.first + first_K1 * run.width + torch.arange(run.width)
        indices.append(place_KW.flatten())
    return torch.cat(indices)


Within = Literal["heads", "channels"]
# Model types whose configuration may state the size of a head by itself, in
# transformers and in vLLM. Where it is derived from the model's width and the number of
# heads (qwen2 in vLLM), a model with fewer heads is another one.
_STATE_HEAD_SIZE = (
    *("gemma2", "gemma3", "gemma3_text", "llama", "mistral", "phi3", "qwen3"),
)
_BLOCK = {"heads": "self_attn", "channels": "mlp"}
# Names of a block's matrices: each by itself, or those that read the same input in one.
_LAYOUTS = {
    "heads": ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"}),
    "channels": ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"}),
}
_NAMED = 4  # matrices in an error: a layer of experts has hundreds
# whose columns they are
OUTPUT = {"heads": "self_attn.o_proj", "channels": "mlp.down_proj"}


@dataclass(frozen=True, slots=True)
class Run:
    """Parts side by side: part p has the `width` rows or columns from `first + p *
    width` on."""

    first: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the heads or channels of every layer are."""

    parts: int  # key-value heads, or channels
    rows: Mapping[str, Sequence[Run]]  # by module
    columns: Run  # of the module in OUTPUT


def parts_of(decoder: Decoder, unit: Unit) -> int:
    """How many layers there are, or key-value heads or channels in each. Raises
    InputError where they cannot go."""
    return len(decoder) if unit == "layers" else layout_of(decoder, unit).parts


def layout_of(decoder: Decoder, unit: Within) -> Layout:
    """Raises InputError for a layer of another layout."""
    if (
        unit == "heads"
        and decoder.checkpoint.config["model_type"] not in _STATE_HEAD_SIZE
    ):
        why = (
            "the size of a head must be a field of its own; it is for"
            f" {', '.join(_STATE_HEAD_SIZE)}"
        )
        _refuse(decoder, unit, why)
    shapes = _shapes(decoder, unit)
    if unit == "channels":
        parts, columns = shapes["down_proj"][1], Run(0, 1)
        rows = {
            "gate_proj": [columns],
            "up_proj": [columns],
            "gate_up_proj": [columns, Run(parts, 1)],
        }
    else:
        heads = decoder.config.num_attention_heads
        parts = decoder.config.num_key_value_heads
        size = shapes["o_proj"][1] // heads
        # query heads that share one key and value
        columns, keys = Run(0, heads // parts * size), Run(0, size)
        after = parts * columns.width
        rows = {"q_proj": [columns], "k_proj": [keys], "v_proj": [keys]}
        rows["qkv_proj"] = [columns, Run(after, size), Run(after + parts * size, size)]
    for name, runs in rows.items():
        wanted = parts * sum(run.width for run in runs)
        if name in shapes and shapes[name][0] != wanted:
            why = f"{name} has {shapes[name][0]} rows, {parts} {unit} need {wanted}"
            _refuse(decoder, unit, why)
    by_module = {f"{_BLOCK[unit]}.{name}": runs for name, runs in rows.items()}
    return Layout(parts, by_module, columns)


def _shapes(decoder: Decoder, unit: Within) -> dict[str, tuple[int, int]]:
    """Rows and columns of a block's matrices, the same in every layer."""
    block = f"{_BLOCK[unit]}."
    first: dict[str, tuple[int, int]] = {}
    for layer in range(len(decoder)):
        shapes = {
            name.removeprefix(block): (linear.out_features, linear.in_features)
            for name, linear in decoder.linears(layer).items()
            if name.startswith(block)
        }
        if set(shapes) not in _LAYOUTS[unit]:
            some = ", ".join([*shapes][:_NAMED]) or "nothing"
            _refuse(decoder, unit, f"layer {layer} has {some} in {_BLOCK[unit]}")
        if shapes != (first or shapes):
            _refuse(decoder, unit, f"they have other sizes in layer {layer}")
        first = shapes
    return first


def _refuse(decoder: Decoder, unit: Within, why: str) -> NoReturn:
    file, kind = decoder.checkpoint.config_file, decoder.checkpoint.config["model_type"]
    raise InputError(
        f"{file}: {unit} cannot be taken out of model_type {kind!r}: {why}"
    )


def choose(
    config: PruneConfig, decoder: Decoder, flow: Flow | None, report: Progress
) -> Cut:
    """The parts to take out; `flow`: calibration, or None. Raises JobError if not
    finite."""
    first = first_cut(decoder, config.removed)
    count = len(first.gone[0])
    if flow is None:
        return first
    if first.unit == "layers":
        return _stillest(decoder, flow, count, report)
    return _lowest(first.unit, decoder, flow, count, report)


def _stillest(decoder: Decoder, flow: Flow, count: int, report: Progress) -> Cut:
    """The block of layers with the smallest angular distance; see
    `pruning.methods.removals`."""
    # that enter each layer, and that leave the last one
    states = [flow.ends() for _ in flow.layers(report, last=True)]
    states.append(flow.ends())
    distances = tuple(map(angular_distance, states, states[count:]))
    if not all(map(math.isfinite, distances)):
        raise JobError(
            "the residual stream is zero at a calibration text's last token: no angle"
            " can be measured"
        )
    first = distances.index(min(distances))
    return Cut(
        unit="layers",
        of=len(decoder),
        gone=(tuple(range(first, first + count)),),
        distances=distances,
    )


def angular_distance(one_NH: Tensor, other_NH: Tensor) -> float:
    """1/pi arccos of the cosine between two states of N texts, their mean (Gromov et
    al., eq. 7); NaN for a zero."""
    cosine_N = (one_NH * other_NH).sum(dim=1) / (
        one_NH.norm(dim=1) * other_NH.norm(dim=1)
    )
    return float(cosine_N.clamp(-1, 1).arccos().mean()) / math.pi


def _lowest(
    unit: Within, decoder: Decoder, flow: Flow, count: int, report: Progress
) -> Cut:
    """In each layer the parts with the lowest scores, which the layers before it,
    already cut, decide too.

    Wanda-sp: An et al., Fluctuation-based Adaptive Structured Pruning for Large
    Language Models (arXiv:2312.11983), and its published code (`prune_wanda_sp`):
    |W| * ||x|| of the matrix that adds a part's result to the residual stream,
    averaged over rows, summed over the part's columns."""
    output, layout = OUTPUT[unit], layout_of(decoder, unit)
    parts, width = layout.parts, layout.columns.width
    gone: list[tuple[int, ...]] = []
    for index, layer in flow.layers(report):
        norm_sq_I = torch.empty(0)
        for gathered in flow.collect(index, layer, [Statistic.COLUMN_NORMS]):
            if output in gathered.members:
                norm_sq_I = gathered.take()[Statistic.COLUMN_NORMS]
        weight_OI = decoder.linears(index)[output].weight.data
        score_I = weight_OI.float().abs().mean(dim=0) * norm_sq_I.float().sqrt()
        if not bool(score_I.isfinite().all()):
            raise JobError(
                f"{decoder.tensor_name(index, output)}: the activations that it reads"
                " are not finite"
            )
        score_P = score_I.double().view(parts, width).sum(dim=1)
        # of equals the first
        taken_P = torch.sort(score_P, stable=True).indices[:count]
        # A zero column hides its input from later layers, as if the part were gone.
        zeroed_OI = weight_OI.clone()
        zeroed_OI.view(-1, parts, width)[:, taken_P] = 0
        decoder.replace(index, output, zeroed_OI)
        gone.append(tuple(sorted(taken_P.tolist())))
    return Cut(unit=unit, of=parts, gone=tuple(gone))
