"""What is carried to a GPU machine without a network is what gpu.lock pins."""

from __future__ import annotations

import pytest
from packaging.utils import canonicalize_name

from tests.support.requirements import ROOT, pins, requirements

KIT = ROOT.parent / "shared" / "gpu"
PYTHON = "3.12"  # the machine's
# What comes from the machine in another version than the lock's. With cuBLAS of its own torch loads too, and 915 MiB
# stay at home; vLLM's kernels use the stable part of torch's C++ interface, so an older torch will do.
CUDA = {"nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cusparselt-cu13"}
TORCH = {"torch", "torchvision", "triton", "nvidia-nccl-cu13"} | CUDA
OF_THE_MACHINE = {"stack-0.32.txt": CUDA, "stack-0.32-on-2.11.txt": TORCH}
NAMED = TORCH | {"vllm", "ray", "pydantic", "datasets"}  # what must come from somewhere


@pytest.mark.skipif(not KIT.is_dir(), reason=f"the kit is not there: {KIT}")
def test_every_list_of_this_vllm_carries_the_versions_of_the_lock() -> None:
    lock, compared = pins("gpu.lock", PYTHON), set()
    for path in KIT.glob("stack-*.txt"):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("!")]
        named = requirements(line.partition("#")[0] for line in lines)
        kit = {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in named}
        if kit["vllm"] != lock["vllm"]:
            continue
        others = {package for package, version in kit.items() if lock.get(package) != version}
        assert others | (NAMED - kit.keys()) == OF_THE_MACHINE[path.name], path.name
        compared.add(path.name)
    assert compared == OF_THE_MACHINE.keys()
