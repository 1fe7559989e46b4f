"""Tiny checkpoint directories of a few random tensors, for tests of what is read
from them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.manifests import PruneManifest, to_json
from evaluator.checkpoints.tensors import INDEX, SINGLE
from evaluator.core.errors import InputError

MANIFEST = PruneManifest(
    method="wanda", pattern="unstructured", sparsity=0.5, measured_sparsity=0.5, allocation="uniform",
    layer_sparsity=(0.5,), config={"source": "/models/mine"}, source_files={}, matrices=(), calibration=None,
    versions={}, provenance={}, seed=0, device="cpu", dtype="BF16", compute_dtype="float32", seconds=1.0,
    peak_memory_bytes=1, files={},
)  # fmt: skip
CONFIG = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 4,
    "dtype": "bfloat16",
}


def tensors(
    seed: int = 0, dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    names = ("model.embed.weight", "model.a.weight", "lm_head.weight")
    return {name: torch.randn(4, 3, generator=made).to(dtype) for name in names}


def write(
    directory: Path,
    weights: Mapping[str, torch.Tensor] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(
        json.dumps(CONFIG if config is None else config)
    )
    save_file(tensors() if weights is None else dict(weights), directory / SINGLE)
    return directory


def write_sharded(
    directory: Path,
    weights: Mapping[str, torch.Tensor],
    parts: Mapping[str, Sequence[str]],
    config: Mapping[str, Any] | None = None,
) -> Path:
    """`parts`: shard name -> tensor names."""
    write(directory, config=config)
    (directory / SINGLE).unlink()
    for shard, names in parts.items():
        save_file({name: weights[name] for name in names}, directory / shard)
    weight_map = {name: shard for shard, names in parts.items() for name in names}
    (directory / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return directory


def stated(**facts: Any) -> Checkpoint:
    """A checkpoint without files, of which some facts are known."""
    checkpoint = Checkpoint(Path("model"))
    vars(checkpoint).update(facts)
    return checkpoint


def write_manifest(directory: Path, **changes: Any) -> None:
    """Say that a checkpoint was pruned."""
    manifest = MANIFEST.model_copy(update=changes)
    (directory / manifest.FILE).write_text(to_json(manifest))


def only_error(directory: Path, **arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        inspect_checkpoint(directory, **arguments)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)
    return str(caught.value)
