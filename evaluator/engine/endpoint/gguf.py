"""A GGUF file: what it states of itself, and whether its tokens are those of the base.

Token ids come from the base's tokenizer and go to the server as they are. So what
counts is that each id is the same token in both. Else the file's own tokenizer poses
the questions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from evaluator.checkpoints.checkpoint import Checkpoint, build_config
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.tokenizer import eos_ids_of
from evaluator.core.errors import InputError, Json, one_line
from evaluator.core.liveness import HEARTBEAT
from evaluator.engine.endpoint.slots import common

_PADDING = ("[PAD", "<pad", "<unused", "<|unused", "<|reserved", "UNUSED")
_TOKENS = "tokenizer.ggml.tokens"
_ENDS = tuple(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
_TEMPLATE = "tokenizer.chat_template"
_MAGIC = b"GGUF"
_SHOWN = 3  # different tokens in an error
_EXCERPT = 60  # characters of a value
_PIECE = 2**20  # blocks that are checked at a time
# At which bytes of a block its floating-point numbers are. Any others are finite.
_PLACES = {
    **dict.fromkeys(
        ["F64", "F32", "BF16", "F16", "Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"], (0,)
    ),
    **dict.fromkeys(["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"], (0,)),
    **dict.fromkeys(["Q4_1", "Q5_1", "Q4_K", "Q5_K"], (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
# how they are stored, and the bits that are all set in NaN and infinity
_EXPONENTS: dict[str, tuple[type[Any], int]] = {
    "F64": (np.uint64, 0x7FF0 << 48),
    "F32": (np.uint32, 0x7F80 << 16),
    "BF16": (np.uint16, 0x7F80),
}
_HALF = (np.uint16, 0x7C00)
_TYPE, _FACTOR = "rope.scaling.type", "rope.scaling.factor"
_YARN, _ATTENTION = "rope.scaling.yarn_", "rope.scaling.attn_factor"
_EXTRAPOLATION = f"{_YARN}ext_factor"
# tensors of the rotary embedding, a number for each wave
_WAVES, _LONG, _SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
# A file's settings, and the names that config.json may have for each.
_FIELDS = {
    "context_length": ("model_max_length", "max_position_embeddings", "n_positions"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size_mlp", "intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon"),
    "attention.sliding_window": ("sliding_window",),
    "attention.scale": ("attention_multiplier",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "embedding_scale": ("embedding_multiplier",),
    "residual_scale": ("residual_multiplier",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok", "top_k_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_weights_scale": ("routed_scaling_factor",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "vocab_size": ("vocab_size",),
    "rope.freq_base": ("rope_theta",),
    _TYPE: ("rope_type",),
    _FACTOR: ("factor",),
    "rope.scaling.original_context_length": ("original_max_position_embeddings",),
    f"{_YARN}beta_fast": ("beta_fast",),
    f"{_YARN}beta_slow": ("beta_slow",),
    _EXTRAPOLATION: ("extrapolation_factor",),
    _ATTENTION: ("attention_factor",),
    "rope.dimension_count": ("rotary_dim",),
    _WAVES: ("factors",),
    _LONG: ("long_factor",),
    _SHORT: ("short_factor",),
}
# with one of these fields in config.json, the converter writes another number
_OTHERWISE = {
    "attention.head_count_kv": {"kv_lora_rank"},
    "attention.key_length": {"kv_lora_rank"},
    "rope.dimension_count": {"kv_lora_rank"},
    "feed_forward_length": {"block_auto_adjust_ff_dim"},
}
# what llama.cpp takes where a file states nothing
_UNSTATED = {"rope.freq_base": 10_000.0}
_UNSTATED_YARN = {
    f"{_YARN}beta_fast": 32.0,
    f"{_YARN}beta_slow": 1.0,
    _EXTRAPOLATION: 1,
}
_ROPES = ("default", "linear", "yarn", "longrope", "llama3")  # known to both
_COMPUTED = ("yarn", "longrope", "llama3")  # by a function of transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    file_type: str  # "Q4_1"
    parameters: int
    settings: Json  # of its architecture, as "context_length"; of what is computed too
    tokens: tuple[str, ...]
    ends: frozenset[int]  # tokens that end an answer
    template: str  # of chats; empty: none

    @property
    def positions(self) -> int | None:
        """That the model was made for."""
        positions = self.settings.get("context_length")
        return positions if isinstance(positions, int) else None


def read_header(file: Path, *, weights: bool = False) -> Header:
    """Raises InputError for a file that is no whole GGUF, and without the package.
    `weights`: also for those that are not finite, which takes a reading of all."""
    if find_spec("gguf") is None:
        raise InputError(f"{file}: to read it, pip install 'resurface[gguf]'")
    from gguf import GGUFReader, LlamaFileType

    try:
        with file.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
    except OSError as error:
        raise InputError(f"{file}: {one_line(error)}") from error
    if magic != _MAGIC:
        raise InputError(f"{file}: is no GGUF file: it does not begin with GGUF")
    try:
        reader = GGUFReader(str(file))
        values = {
            name: field.contents()
            for name, field in reader.fields.items()
            if name in (_TOKENS, _TEMPLATE, *_ENDS) or "tokenizer." not in name
        }
    except Exception as error:  # of a damaged file it raises whatever numpy raises
        raise InputError(
            f"{file}: is damaged or cut off: its {file.stat().st_size:,} bytes are not"
            " what its header states; copy or convert it again"
        ) from error
    if values.get("split.count") not in (None, 0, 1):
        raise InputError(
            f"{file}: is one of several parts; join them with llama-gguf-split --merge"
        )
    architecture, tokens = values.get("general.architecture"), values.get(_TOKENS)
    if not isinstance(architecture, str) or not isinstance(tokens, list):
        raise InputError(f"{file}: has no architecture or no tokens (tokenizer.ggml)")
    number = values.get("general.file_type")
    file_type = "unknown"
    if isinstance(number, int):
        try:
            file_type = LlamaFileType(number).name.removeprefix("MOSTLY_")
        except ValueError:
            file_type = f"file type {number}"
    if weights:
        _check_finite(file, reader.tensors)
    settings = {
        name.removeprefix(f"{architecture}."): value for name, value in values.items()
    }
    layers, further = settings.get("block_count"), settings.get("nextn_predict_layers")
    if isinstance(layers, int) and isinstance(further, int):
        settings["block_count"] = layers - further  # which guess further tokens
    return Header(
        file_type=file_type,
        parameters=sum(int(tensor.n_elements) for tensor in reader.tensors),
        settings=settings | _rope(settings, reader.tensors),
        tokens=tuple(tokens),
        ends=frozenset(values[name] for name in _ENDS if name in values),
        template=str(values.get(_TEMPLATE, "")),
    )


def _check_finite(file: Path, tensors: Any) -> None:
    """Raises InputError for a number that is not finite: in a block of a quantised
    matrix, only its scales can be."""
    from gguf import GGML_QUANT_SIZES

    for tensor in tensors:
        kind = tensor.tensor_type.name
        number, exponent = _EXPONENTS.get(kind, _HALF)
        size = np.dtype(number).itemsize
        _, block = GGML_QUANT_SIZES[tensor.tensor_type]
        rows = tensor.data.reshape(-1).view(np.uint8).reshape(-1, block)
        for start in range(0, len(rows), _PIECE):
            HEARTBEAT.beat()
            for place in _PLACES.get(kind, ()):
                part = rows[start : start + _PIECE, place : place + size]
                bits = np.ascontiguousarray(part).view(number)
                if ((bits & exponent) == exponent).any():
                    raise InputError(
                        f"{file}: tensor {tensor.name}: has numbers that are not"
                        " finite; convert the model again"
                    )


def _rope(settings: Json, tensors: Any) -> Json:
    """The rotary embedding that llama.cpp computes, in the words of config.json. Two of
    its kinds are tensors, not settings."""
    kind = settings.get(_TYPE, "linear")
    factor = settings.get(_FACTOR, settings.get("rope.scale_linear"))
    found: Json = {}
    for tensor in tensors:
        name = tensor.name.removesuffix(".weight")
        if name in (_WAVES, _LONG, _SHORT):
            found[name] = tensor.data.tolist()
    if _LONG in found:
        kind, factor = "longrope", None
    if waves := found.get(_WAVES):
        kind, factor = "llama3", max(waves)  # the longest waves have the whole factor
    if kind == "none" or (kind in ("linear", "llama3") and factor in (None, 0, 1)):
        kind, factor = "default", None
    attention = settings.get(_ATTENTION, 1.0)
    if kind == "yarn":
        found |= {key: settings.get(key, own) for key, own in _UNSTATED_YARN.items()}
        if not found[_EXTRAPOLATION]:
            attention *= settings.get(f"{_YARN}attn_factor", 1.0)
        elif factor and not settings.get(f"{_YARN}log_multiplier"):
            attention *= 1 + 0.1 * math.log(max(factor, 1))  # whatever the file states
    if kind in ("yarn", "longrope"):
        found[_ATTENTION] = attention
    return {_TYPE: kind, _FACTOR: factor, **found}


def differences(header: Header, base: Path, tokenizer: Any) -> Iterator[str]:
    """A line for each setting that a file and its base state otherwise. `tokenizer`:
    the base's."""
    ours = _settings_of(base)
    for key, fields in _FIELDS.items():
        field = next((field for field in fields if ours.get(field)), None)
        value = header.settings.get(key, _UNSTATED.get(key))
        if field is None or not value or ours.keys() & _OTHERWISE.get(key, ()):
            continue
        if not _is_same(ours[field], value):
            own, place = ours[field], ""
            if isinstance(own, list):
                pairs = enumerate(zip_longest(own, value))
                at, (own, value) = next(p for p in pairs if not _is_same(*p[1]))
                place = f"[{at}]"
            own, value = (
                float(f"{each:.6g}") if isinstance(each, float) else each
                for each in (own, value)
            )
            shown = one_line(repr(value), _EXCERPT)
            stated = "" if key in header.settings else ", as it states none"
            yield f"{key}: {field}{place} {own!r} against {shown}{stated}"
    names = tokenizer.convert_ids_to_tokens(sorted(eos_ids_of(tokenizer)))
    ends = [token for end, token in enumerate(header.tokens) if end in header.ends]
    if names and ends and not {*names} & {*ends}:
        yield f"eos_token_id: {names} against {ends}"
    yield from other_template(tokenizer, header.template)


def _settings_of(base: Path) -> Json:
    """What a base states of its text, with its rotary embedding beside the rest, and
    what transformers computes from that."""
    stored = Checkpoint(base)
    settings = text_model(stored.settings)
    rope: Json = settings.get("rope_parameters") or {}
    layer = "full_attention" if "full_attention" in rope else None
    rope = rope[layer] if layer else rope
    kind = rope.get("rope_type")
    if kind not in _ROPES:
        return settings
    own: Json = {}
    if part := rope.get("partial_rotary_factor"):
        size = settings["hidden_size"] // settings["num_attention_heads"]
        own["rotary_dim"] = int((settings.get("head_dim") or size) * part)
    if kind == "yarn":
        own |= {"beta_fast": 32.0, "beta_slow": 1.0, "extrapolation_factor": 1.0}
    own = settings | own | rope
    if kind in _COMPUTED:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = build_config(stored.config_file, stored.config).get_text_config()
        try:
            waves, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", layer_type=layer)
        except Exception as error:  # whatever a missing field raises
            raise InputError(
                f"{stored.config_file}: rope_parameters: {one_line(repr(error))}"
            ) from error
        own["attention_factor"] = factor
        if kind == "llama3":
            theta, count = rope["rope_theta"], len(waves)
            own["factors"] = [
                theta ** (-at / count) / wave for at, wave in enumerate(waves.tolist())
            ]
    return own


def _is_same(ours: Any, theirs: Any) -> bool:
    """A list has a number for each wave; or for each layer, and 0 where a layer has
    none."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_is_same, ours, theirs))
    its = {*theirs} - {0} if isinstance(theirs, list) else {theirs}
    numbers = all(isinstance(value, int | float) for value in (ours, *its))
    if not numbers:
        return bool(ours == theirs)
    # a file has floats of 32 bits
    return all(math.isclose(ours, other, rel_tol=1e-6) for other in its)


def other_template(tokenizer: Any, stated: str) -> Iterator[str]:
    """A line if a file or a server has another chat template than its base."""
    own = tokenizer.chat_template
    own = own.get("default") if isinstance(own, dict) else own
    if own and stated and own.strip() != stated.strip():
        at = common(own, stated)
        yield (
            f"chat_template: from character {at} {own[at : at + _EXCERPT]!r} against"
            f" {stated[at : at + _EXCERPT]!r}"
        )


def other_tokens(header: Header, tokenizer: Any) -> str:
    """How many tokens of the base's tokenizer have another id in the file, and the
    first ones; empty: none."""
    different = []
    for text, number in tokenizer.get_vocab().items():
        inside = number < len(header.tokens)
        stated = header.tokens[number] if inside else "no token"
        if number in tokenizer.added_tokens_decoder:
            # llama.cpp's converter writes blanks in those
            text = text.replace("\u2581", " ") if " " in stated else text
        if stated != text and not text.startswith(_PADDING):
            different.append((number, text, stated))
    different.sort()
    named = "; ".join(
        f"{number} is {text!r} and {stated!r}"
        for number, text, stated in different[:_SHOWN]
    )
    return f"{len(different)} tokens are not the base's: {named}" if different else ""


def own_tokenizer(file: Path) -> Any:
    """The file's tokenizer, as transformers makes it: not always exactly. Raises
    InputError."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            str(file.parent), gguf_file=file.name, local_files_only=True
        )
    except Exception as error:  # whatever a parser raises
        raise InputError(
            f"{file}: transformers cannot read its tokenizer: {one_line(error)}"
        ) from error
