"""The facts about a checkpoint that an engine needs before it loads a byte of the
weights.

One engine can serve two checkpoints with equal blueprints: it swaps the second in
place. The driver groups checkpoints by a key that is at least as strict
(`CheckpointInfo.architecture`). An engine compares blueprints again and reports the
differences in words."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.checkpoints.fit import build_config
from evaluator.checkpoints.info import INCIDENTAL, read_config, stored_dtype
from evaluator.checkpoints.quantisation import Quantisation, read_quantisation
from evaluator.checkpoints.shapes import expert_field, text_model
from evaluator.checkpoints.tensors import read_tensors
from evaluator.core.errors import InputError

# Checkpoints with different or missing class names are compared by their tensors. The
# driver's key keeps the name: it separates these checkpoints before any engine compares
# them.
_NOT_COMPARED = INCIDENTAL | {"architectures"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The architecture of a checkpoint: everything but the values of its weights."""

    # config.json with the architecture's defaults, without what does not change the
    # result
    config: dict[str, Any]
    # name -> (dtype as in safetensors: "BF16", ..., shape)
    tensors: dict[str, tuple[str, tuple[int, ...]]]
    files: tuple[Path, ...]  # where the tensors are
    dtype: str  # "bfloat16": the configuration's, or else that of most weights
    bytes: int  # of all tensors
    vocabulary: int
    # the most positions that the model was made for, if its config says
    longest: int | None
    quantisation: Quantisation | None = None
    mixture: bool = False  # of experts

    def difference(self, other: "Blueprint") -> str | None:
        """The first thing that keeps `other` from being swapped into an engine built
        for this one, in words."""
        for key in sorted(self.config.keys() | other.config.keys()):
            ours, theirs = self.config.get(key), other.config.get(key)
            if ours != theirs:
                return f"config.json: {key} is {theirs!r}, not {ours!r}"
        for name in sorted(self.tensors.keys() | other.tensors.keys()):
            if name not in other.tensors:
                return f"tensor {name} is missing"
            if name not in self.tensors:
                return f"tensor {name} is not part of the served architecture"
            (our_dtype, our_shape), (dtype, shape) = (
                self.tensors[name],
                other.tensors[name],
            )
            if our_shape != shape:
                return f"tensor {name} has shape {list(shape)}, not {list(our_shape)}"
            if our_dtype != dtype:
                return f"tensor {name} is {dtype}, not {our_dtype}"
        return None


def read_blueprint(checkpoint: Path) -> Blueprint:
    """Read a checkpoint's config and tensor headers. Raises InputError if a file is
    missing, truncated or wrong."""
    path = checkpoint / "config.json"
    written = read_config(checkpoint)
    config = _complete(path, written)
    sizes = text_model(config)
    vocabulary, longest = sizes.get("vocab_size"), sizes.get("max_position_embeddings")
    if not isinstance(vocabulary, int):
        raise InputError(f"{path}: vocab_size is {vocabulary!r}, not a number")
    tensors = read_tensors(checkpoint)
    return Blueprint(
        config={
            key: value for key, value in config.items() if key not in _NOT_COMPARED
        },
        tensors={tensor.name: (tensor.dtype, tensor.shape) for tensor in tensors},
        files=tuple(sorted({tensor.file for tensor in tensors})),
        dtype=stored_dtype(written, tensors),
        bytes=sum(tensor.size for tensor in tensors),
        vocabulary=vocabulary,
        longest=longest if isinstance(longest, int) else None,
        quantisation=read_quantisation(checkpoint, written),
        mixture=expert_field(config) is not None,
    )


def _complete(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the architecture's defaults: one file may spell out
    what another leaves out."""
    from transformers import CONFIG_MAPPING

    if config["model_type"] not in CONFIG_MAPPING:
        return config
    complete: dict[str, Any] = build_config(path, config).to_dict()
    return complete
