"""What tests of a real vLLM engine are marked with. vLLM itself takes seconds to import: they do so when they run."""

import os

import pytest

from tests.support.devices import vllm_serves_cpus

needs_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_serves_cpus(), reason="no vLLM that serves on a CPU is installed"),
]
# A test of what either of vLLM's model runners computes: `pytest --runner V2` runs it on the GPU's.
both_runners = [*needs_vllm, pytest.mark.runners]
only_v2 = [*needs_vllm, pytest.mark.v2]


def runs_v2() -> bool:
    """Whether this process runs the V2 runner."""
    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
