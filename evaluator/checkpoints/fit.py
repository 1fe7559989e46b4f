"""Whether a checkpoint's tensors are those that its model has, neither more nor fewer.

transformers' own loader decides, on its meta device: it has no values, so only headers
are read. A tensor that has no place in the model would be passed over in silence, and a
number computed without it. Of quantised weights only the names are compared. Parts that
no engine uses for text, as heads that predict several tokens, are named as notes.
"""

import operator
import re
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluator.checkpoints.checkpoint import Checkpoint, build_config
from evaluator.checkpoints.quantisation import KEY, LAYOUTS, ONLINE
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.tensors import BESIDE, Tensor
from evaluator.core.errors import InputError, one_line

# transformers sets torch's default dtype, which all threads share
_LOCK = threading.Lock()
_PARTS = r"mtp(_\w+)?|visual|vision_\w+|audio_tower|embed_(vision|audio)|multi_?modal_projector|mm_projector"
_SPARE = re.compile(rf"(^|\.)(({_PARTS})\.|rotary_emb\.inv_freq$)")
# buffers of GPT-2's relatives
_MASK = re.compile(r"\.(attn|attention|self_attention)\.(masked_)?bias$")
# of a layer for one token more
_NEXT = re.compile(r"(.*\blayers\.\d+\.)(eh_proj|enorm|hnorm|shared_head)\b")
_PACKED = re.compile(r"(\.weight_packed|\.qweight|(?<=proj)_blocks)$")
_REMEDIES = {
    r"\blora_|modules_to_save": "merge the adapter into the weights",
    r"^(module|_orig_mod|base_model)\.": "save the model without its wrapper",
    r"scale|zero|packed|g_idx|absmax": "no file describes a quantisation",
}
_PLAIN = ("F64", "F32", "F16", "BF16")
# dtypes and names of matrices that have scales beside them
_SCALED = LAYOUTS - {"bitsandbytes"}
_ROUNDED = ("I8", "I32", "U8", "F8_E4M3", "F8_E5M2")
_QUANTISED = ("weight", "weight_packed", "qweight")
_NUMBER = re.compile(r"\d+")
# Architectures whose published files lack the prefix that others need ("transformer.");
# every engine adds it.
_BARE = ("gpt2", "openai-gpt", "bloom", "opt", "ctrl", "xlm", "xlnet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What is remarkable about tensors that fit."""

    unused: tuple[str, ...] = ()  # parts that no engine uses, a line each
    # a tied embedding -> the output head that is stored
    head_only: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    model: Any
    homes: Mapping[str, str]  # tensor -> its parameter, or what would be its name
    extra: Set[str]  # tensors without a parameter
    ignored: Set[str]  # those of them that transformers knows and passes over
    missing: Set[str]  # parameters without a tensor
    shapes: Mapping[str, tuple[Any, Any]]  # parameter -> the files' shape, its own
    failed: bool  # tensors could not be joined to a parameter


def check_fit(checkpoint: Checkpoint) -> Fit:
    """Raises InputError for tensors that the model of config.json lacks or has besides;
    it names the first.

    Architectures that transformers cannot generate text with are not compared, nor
    unknown layouts of quantisation.
    """
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    file, config = checkpoint.config_file, checkpoint.config
    tensors, quantisation = checkpoint.tensors, checkpoint.quantisation
    if quantisation is not None and quantisation.library == ONLINE:
        quantisation = None
    if quantisation is not None and all(
        tensor.dtype in _PLAIN for tensor in tensors.values()
    ):
        raise InputError(
            f"{checkpoint.path}: {quantisation.label} is described, but no tensor is"
            " quantised"
        )
    if quantisation is not None and quantisation.library in _SCALED:
        _check_scaled(checkpoint)
    if config["model_type"] not in CONFIG_MAPPING or (
        quantisation is not None and quantisation.library not in LAYOUTS
    ):
        return Fit()
    built = build_config(file, config)
    if type(built) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return Fit()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    if quantisation is not None:
        shapes = _parameters(tensors)
    try:
        with _LOCK:
            loaded = _load(built, shapes)
    except Exception as error:  # of each architecture's own code
        raise InputError(
            f"{file}: transformers cannot build this model: {one_line(error)}"
        ) from error
    if quantisation is None:
        _check_plain(loaded, tensors)
    spare = set(loaded.ignored)
    for name in loaded.extra:
        if _is_spare(name, loaded, tensors):
            spare.add(name)
    extra = loaded.extra - spare
    _check_prefix(file, loaded)
    lacks = loaded.missing and not loaded.failed
    differs = quantisation is None and (loaded.shapes or loaded.failed)
    if extra or lacks or differs:
        raise InputError(_misfit(file, loaded, extra))
    unused = (f"not used for text: {_listed(spare)}",) if spare else ()
    return Fit(unused=unused, head_only=_check_tied(file, loaded, tensors))


def _check_scaled(checkpoint: Checkpoint) -> None:
    """Raises InputError for a quantised matrix without its scales, and for a plain one
    among quantised ones that config.json does not leave out. vLLM notices neither: it
    would round the matrix, and multiply by what its memory held."""
    scaled, rounded, plain = set[str](), list[str](), list[str]()
    for name, tensor in checkpoint.tensors.items():
        module, _, own = name.rpartition(".")
        if "scale" in own and not own.startswith("input"):
            scaled.add(module)
        elif own in _QUANTISED:
            (rounded if tensor.dtype in _ROUNDED else plain).append(module)
    for module in rounded:
        if module not in scaled:
            raise InputError(
                f"{checkpoint.path}: {module!r} is quantised, and its scales are"
                " missing: quantise the model again"
            )
    kinds = {_NUMBER.sub("#", module) for module in rounded}
    stated = [*_texts(checkpoint.config[KEY])]
    layers = text_model(checkpoint.config).get("num_hidden_layers")
    for module in plain:
        numbers = [*map(int, _NUMBER.findall(module))]
        # layers behind the last one guess further tokens
        used = not (numbers and isinstance(layers, int)) or numbers[0] < layers
        if (
            used
            and _NUMBER.sub("#", module) in kinds
            and not any(_is_named(each, module) for each in stated)
        ):
            raise InputError(
                f"{checkpoint.path}: {module!r} is plain, the same matrix of other"
                f" layers is quantised, and {KEY} does not leave it out: name it there,"
                " or quantise the model again"
            )


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _is_named(pattern: str, module: str) -> bool:
    """Whether a list of exceptions may mean a module: as a part of its name or by a
    pattern."""
    pattern = re.sub(r"^(re|[-+]):", "", pattern)
    with suppress(re.error):
        if re.search(pattern, module):
            return bool(pattern)
    return pattern.strip("*") in module


def _parameters(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The names and stored shapes of parameters that quantised tensors hold, without
    scales and their kin."""
    shapes = {}
    for stored, tensor in tensors.items():
        name = _PACKED.sub("", stored)
        if name != stored and not stored.endswith("_blocks"):
            name += ".weight"
        if name != stored or not BESIDE.search(name):
            shapes[name] = tensor.shape
    return shapes


def _load(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> _Loaded:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        WeightConverter,
        convert_and_load_state_dict_in_model,
        rename_source_key,
    )
    from transformers.modeling_utils import LoadStateDictConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    # of token ids in the config
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        model = AutoModelForCausalLM.from_config(config)
        tensors = {name: torch.empty(shape) for name, shape in shapes.items()}
    rules = get_model_conversion_mapping(model)
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamings = [rule for rule in rules if not isinstance(rule, WeightConverter)]
    state, prefix = model.state_dict(), model.base_model_prefix
    homes = {}
    for name in shapes:
        homes[name], _ = rename_source_key(name, renamings, converters, prefix, state)
        if homes[name] not in state and name in state:
            homes[name] = name
    how = LoadStateDictConfig(
        weight_mapping=rules, device_map={"": "meta"}, ignore_mismatched_sizes=True
    )
    loading, _ = convert_and_load_state_dict_in_model(model, tensors, how, None)
    before = set(loading.unexpected_keys)
    model.tie_weights(missing_keys=loading.missing_keys, recompute_mapping=False)
    model._adjust_missing_and_unexpected_keys(loading)
    extra = {name for name, home in homes.items() if home in before}
    return _Loaded(
        model=model,
        homes=homes,
        extra=extra,
        ignored={name for name in extra if homes[name] not in loading.unexpected_keys},
        missing=loading.missing_keys,
        shapes={
            name: (list(stored), list(own))
            for name, stored, own in loading.mismatched_keys
        },
        failed=bool(loading.conversion_errors),
    )


def _check_plain(loaded: _Loaded, held: Mapping[str, Tensor]) -> None:
    """Raises InputError for numbers of a quantisation that no file describes."""
    state = loaded.model.state_dict()
    for name, home in loaded.homes.items():
        tensor = held[name]
        is_float = home in state and state[home].is_floating_point()
        if is_float and tensor.dtype not in _PLAIN:
            raise InputError(
                f"{tensor.file}: tensor {name!r} is {tensor.dtype}, and no file"
                " describes a quantisation"
            )


def _is_spare(name: str, loaded: _Loaded, held: Mapping[str, Tensor]) -> bool:
    """Whether an extra tensor cannot matter to text: a part for other tasks, a
    buffer, or a bias of zeros."""
    tensor = held.get(name)
    if _SPARE.search(name) or tensor is None:
        return _SPARE.search(name) is not None
    if _MASK.search(name) and len(tensor.shape) in (0, 4):
        return True
    weight = f"{name.removesuffix('bias')}weight"
    if name.endswith(".bias") and weight in loaded.homes.keys() - loaded.extra:
        return not any(map(any, tensor.chunks()))
    layers = {
        next_layer[1] for each in loaded.extra if (next_layer := _NEXT.match(each))
    }
    layer = next((each for each in layers if name.startswith(each)), None)
    return layer is not None and all(
        each in loaded.extra for each in loaded.homes if each.startswith(layer)
    )


def _check_prefix(file: Path, loaded: _Loaded) -> None:
    """Raises InputError where all names lack the model's own prefix."""
    if loaded.model.config.model_type in _BARE:
        return
    own = loaded.model.base_model_prefix
    for name, home in loaded.homes.items():
        if home == f"{own}.{name}" and re.match(r"(embed|wte|layers\.|h\.)", name):
            raise InputError(
                f"{file.parent}: tensor {name!r} lacks the prefix '{own}.': save"
                " AutoModelForCausalLM, not AutoModel"
            )


def _misfit(file: Path, loaded: _Loaded, extra: Collection[str]) -> str:
    from transformers.core_model_loading import revert_weight_conversion

    if extra:
        remedies = [
            f": {remedy}"
            for pattern, remedy in _REMEDIES.items()
            if re.search(pattern, min(extra))
        ]
        remedy = remedies[0] if remedies else ""
        return f"{file}: the model that it describes has no {_listed(extra)}{remedy}"
    loaded.model._weight_conversions = None  # not only those that were used
    with suppress(Exception):  # names as they stand in files
        expected = revert_weight_conversion(
            loaded.model, loaded.model.state_dict()
        ).keys()
        tied = loaded.model.all_tied_weights_keys.keys()
        if surplus := loaded.homes.keys() - expected:
            return f"{file}: the model that it describes has no {_listed(surplus)}"
        if absent := expected - loaded.homes.keys() - tied:
            return f"{file.parent}: the files lack {_listed(absent)}"
    if loaded.missing:
        return f"{file.parent}: the files lack {_listed(loaded.missing)}"
    name, (stored, own) = min(loaded.shapes.items(), default=("", ([], [])))
    return (
        f"{file}: describes tensor {name!r} of shape {own}, but the files have {stored}"
    )


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"tensor {min(names)!r}{more}"


def _check_tied(
    file: Path, loaded: _Loaded, held: Mapping[str, Tensor]
) -> dict[str, str]:
    """`Fit.head_only`. Raises InputError for two tensors that the configuration ties
    and that differ."""
    stored = {home: name for name, home in loaded.homes.items() if name in held}
    head_only = {}
    for head, table in loaded.model.all_tied_weights_keys.items():
        if head in stored and table in stored:
            one, other = held[stored[head]], held[stored[table]]
            same = (one.dtype, one.shape) == (other.dtype, other.shape)
            if not (same and all(map(operator.eq, one.chunks(), other.chunks()))):
                raise InputError(
                    f"{file}: ties {one.name!r} to {other.name!r}, but they differ: set"
                    " tie_word_embeddings to false"
                )
        elif head in stored and table not in stored:
            head_only[table] = stored[head]
    return head_only
