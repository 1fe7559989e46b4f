"""Which top-p kernels are compiled before requests come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluator.engine.vllm.v2 import warm_up
from evaluator.engine.vllm.v2.warm_up import batches, warm_top_p
from tests.support.engines import needs_vllm


class Gpu:
    """A device that says it is one. Tensors of it are the CPU's."""

    type = "cuda"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    device = Gpu()
    for name in ("zeros", "full"):
        made = getattr(torch, name)
        monkeypatch.setattr(warm_up.torch, name, lambda *size, device, made=made: made(*size))
    return device


def runner(device: Any, most: int = 200) -> Any:
    return SimpleNamespace(device=device, max_num_reqs=most, vocab_size=384)


def test_every_power_of_two_up_to_64_and_the_largest():
    assert batches(200) == [1, 2, 4, 8, 16, 32, 64, 200]
    assert batches(64) == [1, 2, 4, 8, 16, 32, 64]
    assert batches(48) == [1, 2, 4, 8, 16, 32, 48]
    assert batches(1) == [1]


def test_the_sampler_s_top_p_runs_as_it_will_for_requests(gpu):
    asked: list[tuple[torch.Tensor, None, torch.Tensor]] = []

    def mask(logits: torch.Tensor, top_k: None, top_p: torch.Tensor) -> torch.Tensor:
        asked.append((logits, top_k, top_p))
        return logits

    assert warm_top_p(runner(gpu), mask) == 8
    assert [tuple(logits.shape) for logits, _, _ in asked] == [(rows, 384) for rows in batches(200)]
    for logits, top_k, top_p in asked:
        assert (logits.dtype, top_p.dtype) == (torch.float32, torch.float32)
        assert logits.is_contiguous()
        assert top_k is None
        assert top_p.shape == (len(logits),)
        assert bool((top_p < 1).all())


def test_a_cpu_compiles_nothing():
    def never(*_: object) -> torch.Tensor:
        raise AssertionError("a CPU has no such kernels")

    assert warm_top_p(runner(torch.device("cpu")), never) == 0


class TestInstalledVllm:
    pytestmark = needs_vllm

    @pytest.mark.parametrize("units", [16, 68, 108, 132, 148])
    @pytest.mark.parametrize("most", [5, 48, 64, 256])
    def test_no_batch_needs_a_kernel_that_was_not_compiled(self, units, most):
        """A kernel is one for each number of programs that share a row."""
        from vllm.v1.sample.ops import topk_topp_triton as vllm_s

        def kernel(rows: int) -> int | None:
            return vllm_s._topp_split_count(rows, units) if rows <= vllm_s._SPLIT_MAX_BATCH else None

        assert {kernel(rows) for rows in range(1, most + 1)} == {kernel(rows) for rows in batches(most)}

    def test_vllm_s_function_takes_what_it_is_given(self, gpu):
        assert warm_top_p(runner(gpu, 2)) == 2
