"""The builds, device, kernels and code that an engine's numbers depend on, besides weights and requests."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from evaluator.checkpoints.blueprint import Blueprint
from evaluator.checkpoints.shapes import text_model
from evaluator.engine.config import EngineConfig
from evaluator.engine.processor import instruction_sets
from evaluator.engine.self_check import code_digest
from evaluator.engine.vllm.start import Started, installed_version, on_workers

# Settings that choose no kernel: requests, places, and sizes of steps.
_INDIFFERENT = {
    *("kind", "dtype", "scoring", "trust_remote_code"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_gib", "gpu_memory_utilization"),
}


# Variables that choose kernels, in addition to vLLM's own; and vLLM's variables that only locate files, logs, processes
# and other machines.
_CHOOSING = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
_NOT_CHOOSING = (
    *("VLLM_API_KEY", "VLLM_CACHE_ROOT", "VLLM_CONFIG", "VLLM_DO_NOT_TRACK", "VLLM_DP_", "VLLM_HOST_IP", "VLLM_LOG"),
    *("VLLM_NO_USAGE_STATS", "VLLM_PORT", "VLLM_USAGE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"),
    *("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_WORKER_MULTIPROC_METHOD"),  # set by us
    "VLLM_OBJECT_STORAGE_",  # set by vLLM, to another name in each process
)


def on_gpu() -> bool:
    """Whether vLLM computes on a GPU."""
    from vllm.platforms import current_platform

    return not current_platform.is_cpu()


def combination_of(started: Started, config: EngineConfig, blueprint: Blueprint) -> dict[str, str]:
    """The combination in words, by name."""
    import torch
    from vllm import envs
    from vllm.platforms import current_platform

    scoring = "in one step" if started.dialect.one_step else "by forced decoding"
    if started.scoring == "prompt_logprobs":
        scoring = "by prompt log-probabilities"
    quantisation = blueprint.quantisation
    weights: dict[str, str] = (
        {} if quantisation is None else {"weights": f"{quantisation.library}, {quantisation.label}"}
    )
    settings = config.model_dump(mode="json", exclude=_INDIFFERENT)
    return {
        "device": str(current_platform.get_device_name()),
        "instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *instruction_sets()]),
        "dtype": started.dtype,
        "logits": on_workers(started.llm, "logits_dtype")[0],
        "runner": "V2" if started.dialect.v2 else "V1",
        "scoring": scoring,
        "graphs": started.graphs,
        "vllm": installed_version(),
        "torch": torch.__version__,
        "architecture": architecture_in_words(blueprint.config),
        "environment": environment_in_words(os.environ, {*envs.environment_variables, *_CHOOSING}),
        **weights,
        "settings": ", ".join(f"{name}: {value}" for name, value in sorted(settings.items())),
        "code": code_digest(Path(__file__).parents[1]),
    }


def architecture_in_words(config: Mapping[str, Any]) -> str:
    """The kind of a model, and the width of its text part's heads."""
    return f"{config.get('model_type')} with heads of {text_model(config).get('head_dim')}"


def environment_in_words(variables: Mapping[str, str], choosing: Collection[str]) -> str:
    """Which variables that may choose kernels are set, and a digest of their values, which may be secret.

    vLLM sets more than it lists: names of processes, for example, which are others each time.
    """
    chosen = {
        name: value
        for name, value in sorted(variables.items())
        if name in choosing and name.startswith(("VLLM_", *_CHOOSING)) and not name.startswith(_NOT_CHOOSING)
    }
    if not chosen:
        return "nothing set"
    return f"{', '.join(chosen)} ({hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:8]})"
