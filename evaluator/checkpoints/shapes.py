"""Whether the sizes in a checkpoint's config.json are those of its tensors.

An engine builds the model from config.json and finds out what does not fit while it
loads, minutes later. Only what holds for every good checkpoint of the architectures
in `_DECODERS` is compared; what does not apply is skipped.

Some models keep the settings of their text part in a section of config.json
(`text_model`). In a mixture of experts each token passes a few of many feed-forward
networks."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.quantisation import online_scheme
from evaluator.checkpoints.tensors import NOT_FINITE, Tensor
from evaluator.core.errors import InputError

# model_type -> whether a configuration without `head_dim` means hidden_size /
# num_attention_heads.
_DECODERS = {
    "gemma2": False,
    "llama": True,
    "mistral": True,
    "phi3": True,
    "qwen2": True,
    "qwen3": False,
}
_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_QUERY = re.compile(r"model\.layers\.\d+\.self_attn\.q_proj\.weight")


def check_shapes(
    checkpoint: Path, config: Mapping[str, Any], tensors: Iterable[Tensor]
) -> None:
    """Raises InputError where config.json and the tensors' shapes differ: it names
    the field and both values."""
    packed = config.get("quantization_config") and online_scheme(config) is None
    if config.get("model_type") not in _DECODERS or packed:
        return
    file = checkpoint / "config.json"
    sizes, query = _stated_sizes(file, config)
    layers = set()
    for tensor in tensors:
        if layer := _LAYER.match(tensor.name):
            layers.add(int(layer.group(1)))
        if tensor.dtype not in NOT_FINITE or len(tensor.shape) != 2:
            continue
        rows, columns = tensor.shape
        wanted: list[tuple[str, int | None, int]] = []
        if tensor.name == _EMBEDDING:
            wanted = [
                ("vocab_size", sizes["vocab_size"], rows),
                ("hidden_size", sizes["hidden_size"], columns),
            ]
        elif _QUERY.fullmatch(tensor.name):
            wanted = [("hidden_size", sizes["hidden_size"], columns), (*query, rows)]
        for field, count, size in wanted:
            if count is not None and count != size:
                raise InputError(
                    f"{file}: field {field!r} is {count}, but tensor {tensor.name!r} of"
                    f" {tensor.file.name} has shape {list(tensor.shape)}"
                )
    stated = sizes["num_hidden_layers"]
    if stated is not None and layers and layers != set(range(stated)):
        raise InputError(
            f"{file}: field 'num_hidden_layers' is {stated}, but the weights have"
            f" {len(layers)} layers, the last of them model.layers.{max(layers)}"
        )


def _stated_sizes(
    file: Path, config: Mapping[str, Any]
) -> tuple[dict[str, int | None], tuple[str, int | None]]:
    """Sizes, and the rows of a query projection with the fields behind them. None:
    the architecture's default."""
    sizes: dict[str, int | None] = {}
    for field in (
        "vocab_size",
        "hidden_size",
        "num_attention_heads",
        "head_dim",
        "num_hidden_layers",
    ):
        sizes[field] = value = config.get(field)
        if value is not None and (type(value) is not int or value < 1):
            raise InputError(f"{file}: field {field!r} is {value!r}, not a count")
    heads, head_size, hidden = (
        sizes[field] for field in ("num_attention_heads", "head_dim", "hidden_size")
    )
    query: tuple[str, int | None] = "head_dim", None
    if heads and head_size:
        query = "num_attention_heads * head_dim", heads * head_size
    elif heads and hidden and _DECODERS[config["model_type"]]:
        query = (
            "num_attention_heads * (hidden_size // num_attention_heads)",
            heads * (hidden // heads),
        )
    return sizes, query


_FIELDS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_intermediate_size",
)


def expert_field(config: Mapping[str, Any]) -> str | None:
    """The field with the number of experts, in config.json or its text_config; None
    for a model without experts."""
    settings = text_model(config)
    return next((field for field in _FIELDS if settings.get(field)), None)


def text_model(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of config.json, and over them those of its `text_config`, which a
    model of several towers has."""
    text = config.get("text_config")
    return {**config, **(text if isinstance(text, Mapping) else {})}
