"""What is carried to a GPU machine without a network is what gpu.lock pins, and fits into a visit."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.support.requirements import ROOT, pins, requirements

KIT = ROOT.parent / "shared" / "gpu"
PYTHON = "3.12"  # the machine's
LIMIT, PART = 64 << 20, 50 << 20  # bytes: of a visit, and of a part of the kit
# What a list carries in another version than the lock's, or leaves to the machine though the lock's version is another.
EXCEPTIONS = {
    "stack-0.32.txt": {
        "nvidia-cublas": "the machine's 13.1.0.3: torch loads with it, and 915 MiB stay at home",
        "nvidia-cudnn-cu13": "the machine's 9.19.0.56, for the same reason; convolutions need cuDNN, and we run none",
        "nvidia-cusparselt-cu13": "the machine's 0.8.0, for the same reason",
    },
    "stack-0.32-on-2.11.txt": {
        "torch": "the machine's 2.11.0: vLLM's kernels use the stable part of torch's C++ interface",
        "torchvision": "the machine's 0.26.0 belongs to its torch",
        "triton": "the machine's 3.6.0 belongs to its torch",
        "nvidia-nccl-cu13": "the machine's 2.28.9 belongs to its torch",
        "nvidia-cublas": "the machine's 13.1.0.3 belongs to its torch",
        "nvidia-cudnn-cu13": "the machine's 9.19.0.56 belongs to its torch",
        "nvidia-cusparselt-cu13": "the machine's 0.8.0 belongs to its torch",
    },
}
TORCH = ("torch", "torchvision", "triton", "nvidia-nccl-cu13", "nvidia-cublas", "nvidia-cudnn-cu13")
NAMED = (*TORCH, "nvidia-cusparselt-cu13", "vllm", "ray", "pydantic", "datasets")  # what must come from somewhere

pytestmark = pytest.mark.skipif(not KIT.is_dir(), reason=f"the kit is not there: {KIT}")
every_list = pytest.mark.parametrize("name", EXCEPTIONS)


def carried(name: str) -> dict[str, str]:
    """The packages of a list, and their versions."""
    lines = (KIT / name).read_text(encoding="utf-8").splitlines()
    named = requirements(line.partition("#")[0] for line in lines if not line.startswith("!"))
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in named}


@every_list
def test_what_is_carried_has_the_version_of_the_lock(name):
    lock, kit = pins("gpu.lock", PYTHON), carried(name)
    others = {package for package, version in kit.items() if lock.get(canonicalize_name(package)) != version}
    left = {package for package in NAMED if package not in kit}
    assert others | left == set(EXCEPTIONS[name])
    assert all(EXCEPTIONS[name].values())


def test_every_list_of_this_vllm_is_compared():
    version = pins("gpu.lock", PYTHON)[canonicalize_name("vllm")]
    lists = {path.name for path in KIT.glob("stack-*.txt") if carried(path.name)["vllm"] == version}
    assert lists == set(EXCEPTIONS)


def test_a_part_fits_beside_the_tree():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout: the tree's files are not known")
    tree = sum((ROOT / name).stat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file())
    unpacker = Path(KIT / "unpack.py").stat().st_size
    assert tree + PART + unpacker < LIMIT
    assert 'parser.add_argument("--part-mib", type=float, default=50)' in (KIT / "pack.py").read_text(encoding="utf-8")
