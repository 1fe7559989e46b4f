"""What an engine must know of a checkpoint before it loads a byte of its weights.

`read_blueprint` reads config.json and the headers of the safetensors files; two checkpoints whose blueprints do not
differ can be served by one engine, the second swapped in place. `read_eos_ids` says which tokens end an answer.
No torch here, so that a driver can ask as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.errors import InputError

# Keys of config.json that do not change what is computed.
_INCIDENTAL = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The architecture of a checkpoint: everything but the values of its weights."""

    config: dict[str, Any]  # config.json without the keys that do not change what is computed
    tensors: dict[str, tuple[str, tuple[int, ...]]]  # name -> (dtype as in safetensors: "BF16", ..., shape)

    @property
    def vocabulary(self) -> int:
        return int(self.config["vocab_size"])

    @property
    def longest(self) -> int | None:
        """The most positions that the model was made for, or None if its config does not say."""
        value = self.config.get("max_position_embeddings")
        return None if value is None else int(value)

    def difference(self, other: Blueprint) -> str | None:
        """The first thing that keeps `other` from being swapped into an engine built for this one, in words."""
        for key in sorted(self.config.keys() | other.config.keys()):
            ours, theirs = self.config.get(key), other.config.get(key)
            if ours != theirs:
                return f"config.json: {key} is {theirs!r}, not {ours!r}"
        for name in sorted(self.tensors.keys() | other.tensors.keys()):
            if name not in other.tensors:
                return f"tensor {name} is missing"
            if name not in self.tensors:
                return f"tensor {name} is not part of the served architecture"
            (our_dtype, our_shape), (dtype, shape) = self.tensors[name], other.tensors[name]
            if our_shape != shape:
                return f"tensor {name} has shape {list(shape)}, not {list(our_shape)}"
            if our_dtype != dtype:
                return f"tensor {name} is {dtype}, not {our_dtype}"
        return None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a checkpoint. Raises InputError if the file is missing or is not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path.parent}: not a checkpoint: {path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def weight_files(checkpoint: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint: those that its index names, or the only one. Raises InputError."""
    index = checkpoint / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
        files = tuple(checkpoint / name for name in names)
    else:
        files = tuple(sorted(checkpoint.glob("*.safetensors")))
    for file in files:
        if not file.exists():
            raise InputError(f"{index}: names {file.name}, which is missing")
    if not files:
        raise InputError(f"{checkpoint}: not a checkpoint: it holds no .safetensors file")
    return files


def read_blueprint(checkpoint: Path) -> Blueprint:
    """Read a checkpoint's config and tensor headers. Raises InputError if a file is missing, truncated or wrong."""
    from safetensors import SafetensorError, safe_open

    config = _read_config(checkpoint)
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in weight_files(checkpoint):
        try:
            with safe_open(file, framework="np") as opened:
                for name in opened.keys():  # noqa: SIM118  (not a dict)
                    header = opened.get_slice(name)
                    tensors[name] = (str(header.get_dtype()), tuple(header.get_shape()))
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: not a whole safetensors file: {error}") from error
    return Blueprint(config=config, tensors=tensors)


def _read_config(checkpoint: Path) -> dict[str, Any]:
    """config.json with the defaults of its architecture filled in: a file may spell out what another leaves out."""
    from transformers import CONFIG_MAPPING

    path = checkpoint / "config.json"
    config = read_json(path)
    if not isinstance(config.get("vocab_size"), int):
        raise InputError(f"{path}: vocab_size is {config.get('vocab_size')!r}, not a number")
    model_type = config.get("model_type")
    if model_type in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[model_type].from_dict(config).to_dict()
        except (TypeError, ValueError, KeyError) as error:
            raise InputError(f"{path}: not a {model_type} configuration: {str(error).splitlines()[0]}") from error
    return {key: value for key, value in config.items() if key not in _INCIDENTAL}


def read_eos_ids(checkpoint: Path) -> frozenset[int]:
    """The token ids that end an answer: those of generation_config.json (else config.json) and the tokenizer's own.

    Raises InputError if the checkpoint's config or tokenizer cannot be read.
    """
    from transformers import AutoTokenizer

    generation = checkpoint / "generation_config.json"
    ids = read_json(generation).get("eos_token_id") if generation.exists() else None
    if ids is None:
        ids = read_json(checkpoint / "config.json").get("eos_token_id")
    found = set(ids) if isinstance(ids, list) else {ids}
    try:
        found.add(AutoTokenizer.from_pretrained(checkpoint).eos_token_id)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{checkpoint}: its tokenizer cannot be read: {str(error).splitlines()[0]}") from error
    return frozenset(token for token in found if token is not None)
