"""Which ranks are replaced, and what is said of wrong ones. The V2 runner's kernel: v2/test_kernels.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from evaluator.engine.vllm.verify.weights import WorkerExtension
from tests.support.engines import needs_vllm


def wrong_rank(vocabulary: int = 384, dtype: torch.dtype = torch.bfloat16) -> str | None:
    worker, config = WorkerExtension(), SimpleNamespace(get_vocab_size=lambda: vocabulary, dtype=dtype)
    worker.model_runner = SimpleNamespace(model_config=config, device=torch.device("cpu"))
    return worker.wrong_rank()


class TestInstalledVllm:
    pytestmark = needs_vllm

    @pytest.fixture(autouse=True)
    def own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """vLLM's own count, which comes back after the test."""
        from vllm.v1.sample import sampler

        def at_least_as_likely(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return (scores >= values).sum(-1)

        monkeypatch.setattr(sampler, "batched_count_greater_than", at_least_as_likely)

    def test_the_v1_runner_ranks_strictly(self):
        from evaluator.engine.vllm.v1.sampler import rank_strictly

        rank_strictly()
        assert wrong_rank() is None

    def test_vllm_s_own_rule_is_named_as_wrong(self):
        assert wrong_rank() == "a token of rank 1 got 384 (in bfloat16)"
        assert wrong_rank(20, torch.float32) == "a token of rank 1 got 20 (in float32)"
