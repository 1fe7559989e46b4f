"""What tests of a real vLLM engine are marked with. vLLM itself takes seconds to import: they do so when they run."""

import importlib.util

import pytest

needs_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
