"""What tests of a real vLLM engine are marked with. vLLM itself takes seconds to import: they do so when they run."""

import pytest

from tests.support.devices import vllm_serves_cpus

needs_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_serves_cpus(), reason="no vLLM that serves on a CPU is installed"),
]
