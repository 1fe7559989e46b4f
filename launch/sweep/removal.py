"""Whether heads or channels that a sweep takes out leave sizes that engines and quantisations can divide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluator.engine.config import EngineConfig
from evaluator.errors import InputError
from launch.sweep.jobs import CheckpointJob
from quantising.config import QuantiseConfig
from quantising.schemes import SCHEMES


def check_divided(engine: EngineConfig, jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError for sizes that the engine's GPUs or a scheme's groups do not divide."""
    prunings = {job.name: job.prune for job in jobs}
    for job in jobs:
        prune = job.prune or prunings.get(job.after or "")
        if prune is None or prune.pattern not in ("heads", "channels"):
            continue
        from pruning.run import settings_after  # torch

        settings = settings_after(prune)
        reasons = [*_among_gpus(engine, settings), *_in_groups(job.quantise, settings)]
        if reasons:
            raise InputError(f"{job.name}: {prune.method}: sparsity: {prune.sparsity} leaves {reasons[0]}")


def _among_gpus(engine: EngineConfig, settings: Mapping[str, Any]) -> Iterator[str]:
    """vLLM's rules (vllm/model_executor/layers/linear.py): key-value heads may also be repeated."""
    gpus = engine.tensor_parallel if engine.kind == "vllm" else 1
    heads, groups = settings["num_attention_heads"], settings["num_key_value_heads"]
    sizes = {"attention heads": heads % gpus, "key-value heads": groups % gpus and gpus % groups}
    sizes["MLP channels"] = settings["intermediate_size"] % gpus
    counts = (heads, groups, settings["intermediate_size"])
    for count, (name, rest) in zip(counts, sizes.items(), strict=True):
        if rest:
            yield f"{count} {name}, which engine.tensor_parallel {gpus} does not divide"


def _in_groups(quantise: QuantiseConfig | None, settings: Mapping[str, Any]) -> Iterator[str]:
    scheme = None if quantise is None else SCHEMES.get(quantise.scheme)
    if quantise is None or scheme is None:
        return
    group = quantise.group_size or scheme.group or 1
    heads = settings["num_attention_heads"]
    size = settings.get("head_dim") or settings["hidden_size"] // heads
    for name, columns in {"o_proj": heads * size, "down_proj": settings["intermediate_size"]}.items():
        if columns % group:
            yield f"{columns} columns of {name}, which scheme {scheme.name}'s groups of {group} do not divide"
