"""What the numbers of a running vLLM engine depend on, besides weights and requests: builds, device, kernels, code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluator.engine.config import EngineConfig
from evaluator.engine.processor import instruction_sets
from evaluator.engine.self_check import code_digest
from evaluator.engine.vllm.start import Started, installed_version

# Settings that choose no kernel: what is asked and where it runs, or how much at a time.
_INDIFFERENT = {
    *("kind", "dtype", "scoring", "trust_remote_code"),
    *("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_gib", "gpu_memory_utilization"),
}


def on_gpu() -> bool:
    """Whether vLLM computes on a GPU."""
    from vllm.platforms import current_platform

    return not current_platform.is_cpu()


def combination_of(started: Started, config: EngineConfig, architecture: dict[str, Any]) -> dict[str, str]:
    """The combination in words, by name. `architecture` is a checkpoint's configuration."""
    import torch
    from vllm.platforms import current_platform

    scoring = "in one step" if started.dialect.one_step else "by forced decoding"
    if started.scoring == "prompt_logprobs":
        scoring = "by prompt log-probabilities"
    settings = config.model_dump(mode="json", exclude=_INDIFFERENT)
    return {
        "device": str(current_platform.get_device_name()),
        "instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *instruction_sets()]),
        "dtype": started.dtype,
        "runner": "V2" if started.dialect.v2 else "V1",
        "scoring": scoring,
        "vllm": installed_version(),
        "torch": torch.__version__,
        "architecture": f"{architecture.get('model_type')} with heads of {architecture.get('head_dim')}",
        "settings": ", ".join(f"{name}: {value}" for name, value in sorted(settings.items())),
        "code": code_digest(Path(__file__).parent),
    }
