"""What tests of a real vLLM engine are marked with. vLLM itself takes seconds to import: they do so when they run."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.support.devices import vllm_serves_cpus

needs_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_serves_cpus(), reason="no vLLM that serves on a CPU is installed"),
]
T = TypeVar("T")
# A test of what either of vLLM's model runners computes: `pytest --runner V2` runs it on the GPU's.
both_runners = [*needs_vllm, pytest.mark.runners]
only_v2 = [*needs_vllm, pytest.mark.v2]


def runs_v2() -> bool:
    """Whether this process runs the V2 runner."""
    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


def fewer(cases: Sequence[T], every: int = 4) -> list[T]:
    """All cases; on V2, whose interpreted kernels take 15 ms for a row of a step, every fourth or so."""
    return list(cases[::every] if runs_v2() else cases)
