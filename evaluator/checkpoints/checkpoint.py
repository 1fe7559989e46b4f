"""A checkpoint directory before an engine loads it: what its files say, each read when
it is first needed, and once.

One engine can serve two checkpoints without a `difference`: it swaps the second in
place. The driver groups checkpoints by a key that is at least as strict
(`CheckpointInfo.architecture`)."""

from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluator.checkpoints.files import check_files, check_no_code, file_states
from evaluator.checkpoints.manifests import (
    PruneManifest,
    QuantiseManifest,
    read_manifest,
)
from evaluator.checkpoints.quantisation import (
    Quantisation,
    described,
    read_quantisation,
)
from evaluator.checkpoints.shapes import expert_field, text_model
from evaluator.checkpoints.tensors import (
    FLOATS,
    INDEX,
    PROVEN,
    Proof,
    Tensor,
    digests,
    read_tensors,
)
from evaluator.core.errors import (
    InputError,
    Json,
    field,
    meant,
    of_kind,
    one_line,
    parse,
    read_bytes,
)

# Keys of config.json about a checkpoint's origin or use, not its computation. They
# include the two dtypes, because the tensors' own dtypes are compared.
INCIDENTAL = frozenset(
    {
        *("_name_or_path", "name_or_path", "transformers_version"),
        *("use_cache", "dtype", "torch_dtype"),
    }
)
# Checkpoints with different or missing class names are compared by their tensors. The
# driver's key keeps the name: it separates these checkpoints before any engine compares
# them.
NOT_COMPARED = INCIDENTAL | {"architectures"}
_DTYPES = FLOATS | {"F64": "float64"}


class Checkpoint:
    """Every attribute raises InputError, in one line that names the file and the field
    or tensor, for what is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check_directory(self) -> None:
        """Raises InputError for no directory, a half-written one, files that nobody
        may read, and code from the hub."""
        path = self.path
        if not path.is_dir():
            raise InputError(f"checkpoint {path}: no such directory{meant(path)}")
        inside = any(part.endswith(".partial") for part in path.resolve().parts)
        if inside or any(path.glob("*.partial")):
            raise InputError(
                f"checkpoint {path}: half-written (what wrote it was stopped); make it"
                " again"
            )
        check_files(path)
        check_no_code(self.config_file, self.stored_config)

    def check_served(self) -> None:
        """Raises InputError now, not when a swap is half done, for files that an engine
        cannot serve."""
        _ = self.tensors, self.vocabulary

    @property
    def config_file(self) -> Path:
        return self.path / "config.json"

    @cached_property
    def stored_config(self) -> Json:
        """config.json as it is written."""
        file = self.config_file
        if not file.exists():
            raise InputError(f"checkpoint {self.path}: config.json is missing")
        stored: Json = of_kind(parse(read_bytes(file), str(file)), dict, str(file))
        return stored

    @cached_property
    def config(self) -> Json:
        """config.json, with the quantisation that another file describes."""
        field(self.stored_config, "model_type", str, str(self.config_file))
        return described(self.path, _with_floats(self.stored_config))

    @cached_property
    def settings(self) -> Json:
        """The configuration with the architecture's defaults, without what does not
        change the result: one file may spell out what another leaves out."""
        from transformers import CONFIG_MAPPING

        settings = self.config
        if settings["model_type"] in CONFIG_MAPPING:
            settings = build_config(self.config_file, settings).to_dict()
        return {
            key: value for key, value in settings.items() if key not in NOT_COMPARED
        }

    @cached_property
    def vocabulary(self) -> int:
        size = text_model(self.settings).get("vocab_size")
        if not isinstance(size, int):
            raise InputError(
                f"{self.config_file}: vocab_size is {size!r}, not a number"
            )
        return size

    @cached_property
    def longest(self) -> int | None:
        """The most positions that the model was made for, if its settings say."""
        longest = text_model(self.settings).get("max_position_embeddings")
        return longest if isinstance(longest, int) else None

    @property
    def is_mixture(self) -> bool:
        """Of experts."""
        return expert_field(self.settings) is not None

    @cached_property
    def quantisation(self) -> Quantisation | None:
        return read_quantisation(self.path, self.config)

    @cached_property
    def pruned(self) -> PruneManifest | None:
        return read_manifest(self.path, PruneManifest)

    @cached_property
    def quantised(self) -> QuantiseManifest | None:
        return read_manifest(self.path, QuantiseManifest)

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor, in the order of the names; headers are read, no weights."""
        return {tensor.name: tensor for tensor in read_tensors(self.path)}

    @cached_property
    def shards(self) -> list[Path]:
        """The files of the tensors."""
        return sorted({tensor.file for tensor in self.tensors.values()})

    @property
    def index(self) -> Path | None:
        """The file that lists the shards, if there are several."""
        file = self.path / INDEX
        alone = [shard.name for shard in self.shards] == ["model.safetensors"]
        return file if file.exists() and not alone else None

    def float_tensor(self, name: str) -> Tensor:
        """Raises InputError if it is missing or has a type that cannot be pruned."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InputError(f"{self.path}: tensor {name} is missing")
        if tensor.dtype not in FLOATS:
            raise InputError(
                f"{tensor.file}: tensor {name} has type {tensor.dtype};"
                f" {', '.join(FLOATS)} are read"
            )
        return tensor

    @cached_property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.size for tensor in self.tensors.values())

    @cached_property
    def dtype(self) -> str:
        """The stored dtype ("bfloat16"): the configuration's, or else that of most
        bytes."""
        settings = text_model(self.config)
        for name in ("dtype", "torch_dtype"):
            named = self.config.get(name) or settings.get(name)
            if isinstance(named, str) and named != "auto":
                return named.removeprefix("torch.")
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            sizes[tensor.dtype] += tensor.size
        most = sizes.most_common(1)[0][0]
        return _DTYPES.get(most, most.lower())

    def positions(self, *, unknown: int, least: int = 1) -> int:
        """The model's positions; `unknown` if config.json has none. Raises InputError
        for a count below `least`."""
        count = text_model(self.config).get("max_position_embeddings") or unknown
        if not isinstance(count, int) or count < least:
            raise InputError(
                f"{self.config_file}: field 'max_position_embeddings' is {count!r}, not"
                " a count"
            )
        return count

    def prove(self) -> Proof:
        """Read all weights once, unless this run did so and no file has changed since.
        Raises InputError for NaN and infinity too."""
        states = file_states(self.path)
        proof = PROVEN.get(self.path.absolute())
        if proof is None or proof.states != states:
            files, weights = digests(Checkpoint(self.path).shards)
            proof = Proof(states=states, files=files, weights=weights)
            PROVEN[self.path.absolute()] = proof
        return proof

    def difference(self, other: "Checkpoint") -> str | None:
        """The first thing that keeps `other` from being swapped into an engine built
        for this one, in words."""
        for key in sorted(self.settings.keys() | other.settings.keys()):
            ours, theirs = self.settings.get(key), other.settings.get(key)
            if ours != theirs:
                return f"config.json: {key} is {theirs!r}, not {ours!r}"
        for name in sorted(self.tensors.keys() | other.tensors.keys()):
            mine, its = self.tensors.get(name), other.tensors.get(name)
            if its is None:
                return f"tensor {name} is missing"
            if mine is None:
                return f"tensor {name} is not part of the served architecture"
            if (mine.dtype, mine.shape) != (its.dtype, its.shape):
                return (
                    f"tensor {name} is {its.dtype} {list(its.shape)}, not"
                    f" {mine.dtype} {list(mine.shape)}"
                )
        return None


def build_config(file: Path, config: Json) -> Any:
    """transformers' configuration of an architecture that it knows. Raises
    InputError; `file` holds `config`."""
    from transformers import CONFIG_MAPPING

    kind = config["model_type"]
    try:
        return CONFIG_MAPPING[kind].from_dict(dict(config))
    except Exception as error:  # each architecture checks its fields in its own way
        raise InputError(
            f"{file}: not a {kind} configuration: {one_line(error)}"
        ) from error


def foreign_window(config: Json) -> int | None:
    """A sliding window that config.json states and its architecture does not have.
    transformers passes over it; vLLM would apply it to all layers."""
    from transformers import CONFIG_MAPPING

    name, window = config.get("model_type"), config.get("sliding_window")
    if not window or name not in CONFIG_MAPPING:
        return None
    return None if hasattr(CONFIG_MAPPING[name](), "sliding_window") else window


def _with_floats(value: Any) -> Any:
    """JSON has no infinity: transformers writes {"__float__": "Infinity"}."""
    if isinstance(value, list):
        return [_with_floats(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if value.get("__float__") in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return {name: _with_floats(entry) for name, entry in value.items()}
