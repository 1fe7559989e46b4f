"""Whether what a sweep takes out of its models makes checkpoints of its own, and whether engines and quantisations can
divide the sizes that models have and that are left."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.checkpoints.info import read_config
from evaluator.checkpoints.text_model import text_model
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from launch.sweep.jobs import CheckpointJob
from quantising.config import QuantiseConfig
from quantising.schemes import SCHEMES


def check_distinct(jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError where two shares round to the same parts, and would make the same checkpoint twice."""
    first: dict[str, str] = {}
    for job in jobs:
        if job.prune is None or not job.prune.removes or job.prune.sparsity is None:
            continue
        from pruning.run import settings_after  # torch

        key = job.prune.model_dump_json(exclude={"sparsity"}) + json.dumps(settings_after(job.prune), default=str)
        if (other := first.setdefault(key, job.name)) != job.name:
            raise InputError(
                f"{job.name}: {job.prune.method}: sparsity: {job.prune.sparsity} takes out as many "
                f"{job.prune.pattern} as {other} does: they would be one checkpoint"
            )


def check_divided(engine: EngineConfig, jobs: Sequence[CheckpointJob]) -> None:
    """Raises InputError for sizes that the engine's GPUs or a scheme's groups do not divide."""
    prunings = {job.name: job.prune for job in jobs}
    for job in jobs:
        if not job.is_made and (reason := next(_among_gpus(engine, _sizes(job.path)), None)):
            raise InputError(f"{job.path / 'config.json'}: {job.name} has {reason}")
        prune = job.prune or prunings.get(job.after or "")
        if prune is None or prune.pattern not in ("heads", "channels"):
            continue
        from pruning.run import settings_after  # torch

        settings = settings_after(prune)
        reasons = [*_among_gpus(engine, settings), *_in_groups(job.quantise, settings)]
        if reasons:
            raise InputError(f"{job.name}: {prune.method}: sparsity: {prune.sparsity} leaves {reasons[0]}")


def _sizes(checkpoint: Path) -> dict[str, int]:
    """The counts of heads that a model's own configuration has."""
    named = text_model(read_config(checkpoint))
    return {
        name: value
        for name in ("num_attention_heads", "num_key_value_heads")
        if isinstance(value := named.get(name), int) and value > 0
    }


def _among_gpus(engine: EngineConfig, settings: Mapping[str, Any]) -> Iterator[str]:
    """vLLM's rules (vllm/model_executor/layers/linear.py): key-value heads may also be repeated."""
    gpus = engine.tensor_parallel if engine.kind == "vllm" else 1
    sizes = {
        "attention heads": settings.get("num_attention_heads", gpus),
        "key-value heads": settings.get("num_key_value_heads", gpus),
        "MLP channels": settings.get("intermediate_size", gpus),
    }
    for name, count in sizes.items():
        if count % gpus and not (name == "key-value heads" and gpus % count == 0):
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
