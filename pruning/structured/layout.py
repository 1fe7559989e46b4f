"""Where the heads and channels of a decoder layer are in its matrices: rows of some, columns of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from evaluator.core.errors import InputError
from pruning.model.decoder import Decoder
from pruning.patterns import Unit

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
    """By module: in which rows the parts of a layer are. Raises InputError for a layer of another layout."""
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
    """By module: in which columns the parts of a layer are. Raises InputError for a layer of another layout."""
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
