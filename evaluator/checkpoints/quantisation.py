"""The quantisation of a checkpoint's weights, from its `quantization_config`, in the
usual terms.

    W4A16 (gptq, group 128)     weights of 4 bits, activations as they are; one scale
                                for 128 weights of a row
    W8A8 (per channel)          int8 weights and activations
    FP8 (block 128x128)         float8 weights and activations

Every tool has its own layout. Values that a configuration does not state stay None.
Most do not name the algorithm; llm-compressor leaves it in a `recipe.yaml` beside it.
This module does not decide what can be served.
"""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    field,
    of_kind,
    parse,
    read_bytes,
    unknown,
)

COMPRESSED_TENSORS = "compressed-tensors"
# `quant_method` of plain weights that vLLM quantises while it loads; `scheme` is then
# one of these. The keys are vLLM's names, without the ones that leave dense layers
# unchanged. The values are the scheme and the part with a common scale.
ONLINE = "online"
ONLINE_SCHEMES: Mapping[str, tuple[str, str]] = {
    "fp8_per_channel": ("FP8", "channel"),
    "fp8_per_tensor": ("FP8", "tensor"),
    "fp8_per_block": ("FP8", "block 128x128"),
    "mxfp8": ("MXFP8", "group 32"),
    "mxfp4": ("MXFP4", "group 32"),
}
KEY = "quantization_config"
_OLD_KEY = "compression_config"  # of compressed-tensors before 0.4
# Files that tools write beside config.json or in place of its field, and the
# `quant_method` that they leave out.
BESIDE = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
STATED_IN = "resurface_stated_in"  # a field that names that file
_NO_ACTIVATION_BITS = 16
_RECIPE = "recipe.yaml"
# llm-compressor's modifiers that choose or transform weights; Quantization alone rounds
# to the nearest value.
_MODIFIERS = {
    name: name.lower()
    for name in ("SmoothQuant", "SpinQuant", "QuIP", "AWQ", "GPTQ", "AutoRound")
}
_MODIFIERS["Quantization"] = "rtn"

# In a scheme's label: activations are quantised, and round by their batch.
ROUNDED_ACTIVATIONS = re.compile(r"\bW\d+A[48]\b|\bFP8\b(?! W\d+A16)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """A quantised checkpoint's scheme. The fields are equal for all of its matrices,
    or those of most."""

    # quant_method of the configuration: who can read the layout ("compressed-tensors",
    # "awq", "fp8")
    library: str
    scheme: str  # "W4A16", "W8A8", "FP8", "NVFP4", ...; several are joined by " and "
    # "gptq", "awq", "rtn" (rounding to nearest), "smoothquant + gptq"
    algorithm: str | None = None
    # what shares a scale: "group 128", "channel", "tensor", "block 128x128"
    per: str | None = None
    symmetric: bool = True
    # "static": the order of visits to columns; "group": groups follow the order
    activation_order: str | None = None
    calibration: str | None = None  # the data for fitting scales or weights, if named
    stated_in: str | None = None  # the file that describes it, if not config.json
    cache: str | None = None  # of keys and values, where the checkpoint states it

    @property
    def label(self) -> str:
        """For people: the scheme and what sets it apart from others of its name."""
        orders = {"group": "act order", "static": "static act order"}
        per = f"per {self.per}" if self.per in ("channel", "tensor") else self.per
        details = [
            self.algorithm,
            per,
            None if self.symmetric else "asymmetric",
            orders.get(self.activation_order or ""),
            self.cache and f"{self.cache} cache",
            self.stated_in and f"by {self.stated_in}",
        ]
        listed = ", ".join(filter(None, details))
        return f"{self.scheme} ({listed})" if listed else self.scheme


def described(path: Path, config: Document) -> Json:
    """config.json with the quantisation that another field, section or file describes,
    if it has none itself. Raises InputError for two that differ."""
    whole = dict(config)
    inner = (config.get("text_config") or {}).get(KEY)
    old = config.get(_OLD_KEY)
    if config.get(KEY) is None and old is not None:
        whole[KEY] = old
    elif config.get(KEY) is None and inner is not None:
        whole[KEY] = inner | {STATED_IN: "text_config"}
    stated = read_quantisation(path, whole)
    for name, method in BESIDE.items():
        file = path / name
        if not file.is_file():
            continue
        settings = of_kind(parse(read_bytes(file), str(file)), dict, str(file))
        library = str(settings.get("quant_method", method)).lower()
        beside = settings | {"quant_method": library, STATED_IN: name}
        if stated is None:
            whole[KEY] = beside
            continue
        other = read_quantisation(path, {KEY: beside})
        if other is not None and other.scheme != stated.scheme:
            raise InputError(
                f"{file}: describes {other.scheme}, but config.json {stated.scheme}:"
                " remove the wrong one"
            )
    return whole


def read_quantisation(path: Path, config: Document) -> Quantisation | None:
    """How a checkpoint is quantised; None: dense. Raises InputError that names file,
    field and value."""
    if config.get(KEY) is None:
        return None
    place = f"{path / 'config.json'}: {KEY}"
    settings = of_kind(config[KEY], dict, place)
    stated = settings.get(STATED_IN)
    if stated in BESIDE:
        place = str(path / stated)
    # Before it was named in the configuration, compressed-tensors was the only one that
    # wrote config_groups.
    library = COMPRESSED_TENSORS
    if "quant_method" in settings or "config_groups" not in settings:
        library = field(settings, "quant_method", str, place).lower()
    if library == COMPRESSED_TENSORS:
        return _compressed_tensors(path, settings, place)
    quantisation = _READERS.get(library, _by_bits)(library, settings, place)
    return replace(quantisation, stated_in=stated)


def online_scheme(config: Document) -> str | None:
    """What vLLM is to make of the plain weights of a checkpoint while it loads them,
    by its own name; None: nothing."""
    settings = config.get(KEY)
    if isinstance(settings, dict) and settings.get("quant_method") == ONLINE:
        return str(settings.get("scheme"))
    return None


def _compressed_tensors(path: Path, settings: Document, place: str) -> Quantisation:
    packed = (settings.get("sparsity_config") or {}).get("format", "dense")
    if packed != "dense":
        raise InputError(
            f"{place}.sparsity_config: format {packed!r} leaves out zeros, and vLLM"
            " reads whole tensors only: save it with format 'dense'"
        )
    groups = []
    for name, group in field(settings, "config_groups", dict, place).items():
        where = f"{place}.config_groups.{name}"
        if of_kind(group, dict, where).get("weights") is not None:
            groups.append(_of_group(group, where))
    if not groups:
        raise InputError(f"{place}: field 'config_groups' quantises no weights")
    orders = filter(None, (group.activation_order for group in groups))
    return Quantisation(
        library=COMPRESSED_TENSORS,
        scheme=" and ".join(dict.fromkeys(group.scheme for group in groups)),
        algorithm=_of_recipe(path / _RECIPE),
        per=groups[0].per if len({group.per for group in groups}) == 1 else None,
        symmetric=all(group.symmetric for group in groups),
        activation_order=next(orders, None),
        cache=_by_cache(settings.get("kv_cache_scheme")),
    )


def _by_cache(scheme: object) -> str | None:
    """vLLM's cache of such a checkpoint has it, also with `kv_cache: auto`."""
    if not isinstance(scheme, dict):
        return None
    kind = "fp" if scheme.get("type") == "float" else "int"
    return f"{kind}{scheme.get('num_bits')}"


def _of_group(group: Document, place: str) -> Quantisation:
    """One of config_groups: the arguments of its weights and of its activations."""
    weights = of_kind(group["weights"], dict, f"{place}.weights")
    inputs = group.get("input_activations")
    bits = _bits(weights, "num_bits", f"{place}.weights")
    activations = _NO_ACTIVATION_BITS
    if inputs is not None:
        activations = _bits(inputs, "num_bits", f"{place}.inputs")
    size = weights.get("group_size")
    strategy = weights.get("strategy")
    if strategy is None:
        strategy = "channel" if size == -1 else "group" if size else "tensor"
    scheme = f"W{bits}A{activations}"
    if weights.get("type", "int") == "float":
        if bits == 4:
            suffix = "" if activations == 4 else f" W4A{activations}"
            scheme = f"{'NVFP4' if size == 16 else 'MXFP4'}{suffix}"
        elif strategy == "group" and size == 32:
            scheme = "MXFP8"
        else:
            scheme = "FP8" if activations == 8 else f"FP8 {scheme}"
    per = _by_block(weights.get("block_structure")) or str(strategy)
    if strategy in ("group", "tensor_group"):
        per = "" if size is None else f"group {size}"
    order = weights.get("actorder")
    if order:
        order = "static" if order in ("static", "weight") else "group"
    return Quantisation(
        library=COMPRESSED_TENSORS,
        scheme=scheme,
        per=per or None,
        symmetric=bool(weights.get("symmetric", True)),
        activation_order=order or None,
    )


def _of_recipe(file: Path) -> str | None:
    """The names of the modifiers in a recipe, in order, or None. Searched, not
    parsed: it may hold any arguments."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    used = [
        _MODIFIERS[name]
        for name in re.findall(r"(?m)^\s*(\w+)Modifier\b", text)
        if name in _MODIFIERS
    ]
    if "awq" in used:  # rounding is a part of AWQ; recipes now write it separately
        used = [each for each in used if each != "rtn"]
    return " + ".join(dict.fromkeys(used)) or None


def _integers(library: str, settings: Document, place: str) -> Quantisation:
    """GPTQ, AWQ and AutoRound. AWQ's first files had other names."""
    bits = "w_bit" if library in _AWQ and "bits" not in settings else "bits"
    activations = settings.get("act_bits") or _NO_ACTIVATION_BITS
    dataset = settings.get("dataset")  # a list holds the texts themselves
    symmetric = settings.get("sym", True)
    if library in _AWQ:
        symmetric = not settings.get("zero_point", True)
    return Quantisation(
        library=library,
        scheme=f"W{_bits(settings, bits, place)}A{activations}",
        algorithm=_ALGORITHMS[library],
        per=_by_size(settings.get("group_size", settings.get("q_group_size"))),
        symmetric=bool(symmetric),
        activation_order="group" if settings.get("desc_act") else None,
        calibration=dataset if isinstance(dataset, str) and dataset else None,
    )


def _fp8(library: str, settings: Document, place: str) -> Quantisation:
    per = _by_block(settings.get("weight_block_size"))
    return Quantisation(library=library, scheme="FP8", per=per)


def _bitsandbytes(library: str, settings: Document, place: str) -> Quantisation:
    four = bool(settings.get("load_in_4bit") or settings.get("_load_in_4bit"))
    kind = str(settings.get("bnb_4bit_quant_type", "fp4")).upper()
    return Quantisation(
        library=library, scheme=kind if four else "LLM.int8", algorithm="rtn"
    )


def _modelopt(library: str, settings: Document, place: str) -> Quantisation:
    inner = settings.get("quantization", settings)
    scheme: str = field(inner, "quant_algo", str, place)
    size = inner.get("group_size")
    cache = inner.get("kv_cache_quant_algo")
    return Quantisation(
        library=library,
        scheme=scheme,
        per=None if size is None else f"group {size}",
        cache=cache.lower() if isinstance(cache, str) else None,
    )


def _online(library: str, settings: Document, place: str) -> Quantisation:
    name: str = field(settings, "scheme", str, place)
    if name not in ONLINE_SCHEMES:
        raise InputError(f"{place}: {unknown('scheme', name, ONLINE_SCHEMES)}")
    scheme, per = ONLINE_SCHEMES[name]
    return Quantisation(library=library, scheme=scheme, algorithm=ONLINE, per=per)


def _by_bits(library: str, settings: Document, place: str) -> Quantisation:
    """A layout that is not known here: the tool's name, and its bits if it says
    them."""
    bits = settings.get("bits", settings.get("num_bits"))
    scheme = f"W{bits}A{_NO_ACTIVATION_BITS}" if type(bits) is int else library.upper()
    return Quantisation(
        library=library, scheme=scheme, per=_by_size(settings.get("group_size"))
    )


_AWQ = ("awq", "awq_marlin", "auto_awq")
_ALGORITHMS = {
    **dict.fromkeys(("gptq", "gptq_marlin"), "gptq"),
    "auto_gptq": "auto_gptq",
    **dict.fromkeys(_AWQ, "awq"),
    **dict.fromkeys(
        ("auto-round", "auto_round", "intel/auto-round", "inc"), "autoround"
    ),
}
_READERS: Mapping[str, Callable[[str, Document, str], Quantisation]] = {
    **dict.fromkeys(_ALGORITHMS, _integers),
    **dict.fromkeys(("fp8", "fbgemm_fp8"), _fp8),
    "bitsandbytes": _bitsandbytes,
    ONLINE: _online,
    **dict.fromkeys(
        ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"), _modelopt
    ),
}
LAYOUTS = {*_READERS, COMPRESSED_TENSORS}  # whose names of tensors are known


def _bits(settings: Any, name: str, place: str) -> int:
    bits = of_kind(settings, dict, place).get(name)
    if type(bits) is not int or not 1 <= bits <= _NO_ACTIVATION_BITS:
        raise InputError(f"{place}: field {name!r} is {bits!r}, not a number of bits")
    return bits


def _by_block(block: object) -> str | None:
    if isinstance(block, list) and len(block) == 2:
        return f"block {block[0]}x{block[1]}"
    return None


def _by_size(size: object) -> str | None:
    if type(size) is not int:
        return None
    return f"group {size}" if size > 0 else "channel"


def overrides(config: Document) -> Json:
    """What vLLM is to read in place of config.json's quantisation; empty: nothing.

    These fields change no computation, but prevent serving:

    - `sparsity_config` of format "dense": a tool's view of the zeros in tensors that it
      stored whole. vLLM 0.32 refuses every such field that names layers.
    - `actorder: static` with one scale for a row: the order of a tool's visits to
      columns. Some versions of compressed-tensors refuse it without groups.
    - `quant_method: online`: the weights are plain. The engine gets the scheme
      separately.

    A quantisation that another file describes is passed on, too.
    """
    if not config.get(KEY):
        return {}
    if online_scheme(config) is not None:
        return {KEY: None}
    settings = copy.deepcopy(dict(config[KEY]))
    if STATED_IN in settings:
        del settings[STATED_IN]
    elif settings.get("quant_method", COMPRESSED_TENSORS) == COMPRESSED_TENSORS:
        if (settings.get("sparsity_config") or {}).get("format") == "dense":
            del settings["sparsity_config"]
        for group in (settings.get("config_groups") or {}).values():
            weights = group.get("weights") or {}
            visits = weights.get("actorder") in ("static", "weight")
            if weights.get("strategy") == "channel" and visits:
                weights["actorder"] = None
    return {} if settings == config[KEY] else {KEY: settings}
