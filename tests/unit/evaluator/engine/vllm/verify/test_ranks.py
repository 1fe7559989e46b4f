"""Which ranks are replaced, and what is said of wrong ones. The V2 runner's kernel: v2/test_ranks.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluator.engine.vllm.verify import ranks
from tests.support.engines import needs_vllm


class V2Runner:
    """Stands in for vLLM's."""


V2Runner.__module__ = "vllm.v1.worker.gpu.model_runner"


class OnCpu(V2Runner):
    """As vLLM's V2 runner for CPUs, which is a subclass in a module of its own."""


def runner(vocabulary: int = 384, dtype: torch.dtype = torch.bfloat16) -> Any:
    config = SimpleNamespace(get_vocab_size=lambda: vocabulary, dtype=dtype)
    return SimpleNamespace(model_config=config, device=torch.device("cpu"))


def test_the_runner_s_class_decides():
    assert ranks.runs_v2(V2Runner())
    assert ranks.runs_v2(OnCpu())
    assert not ranks.runs_v2(runner())


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
        assert ranks.wrong_rank(runner()) is None

    def test_vllm_s_own_rule_is_named_as_wrong(self):
        assert ranks.wrong_rank(runner()) == "a token of rank 1 got 384 (in bfloat16)"
        assert ranks.wrong_rank(runner(20, torch.float32)) == "a token of rank 1 got 20 (in float32)"
