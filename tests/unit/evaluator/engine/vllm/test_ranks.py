"""Strict ranks on the V2 runner: in sampled tables and in those of prompts, whatever vLLM calls what makes them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import NamedTuple

import pytest
import torch

from evaluator.engine.vllm import weights
from evaluator.engine.vllm.abilities import v2_callers
from tests.support.engines import needs_vllm


class Tables(NamedTuple):
    logprob_token_ids: torch.Tensor
    selected_token_ranks: torch.Tensor


def tables(logits: torch.Tensor, num_logprobs: int, sampled_token_ids: torch.Tensor, **_: object) -> Tables:
    """Ranks as vLLM's kernel counts them: the tokens that are at least as likely."""
    values = logits.gather(-1, sampled_token_ids.clamp(0, 3)[:, None])
    return Tables(logits.topk(num_logprobs).indices, (logits >= values).sum(-1))


@pytest.fixture(params=["compute_topk_scores", "compute_topk_logprobs"])
def callers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[tuple[ModuleType, str]]:
    made = []
    for name in ("sampler", "prompt_logprob"):
        caller = ModuleType(name)
        setattr(caller, request.param, tables)
        monkeypatch.setitem(sys.modules, f"vllm.v1.worker.gpu.sample.{name}", caller)
        made.append((caller, request.param))
    return made


def test_both_callers_rank_by_the_strictly_better(callers):
    weights._patch_v2_ranks()
    logits = torch.tensor([[1.0, 3.0, 3.0, 3.0], [2.0, 1.0, 0.0, 0.0]], dtype=torch.bfloat16)
    for caller, name in callers:
        found = getattr(caller, name)(logits, 2, torch.tensor([2, 3], dtype=torch.int32), logits_mode=False)
        assert found.selected_token_ranks.tolist() == [1, 3]  # vLLM's would be 3 and 4
        assert found.logprob_token_ids.shape == (2, 2)


def test_the_row_after_a_prompt_may_hold_anything(callers):
    weights._patch_v2_ranks()
    caller, name = callers[1]
    found = getattr(caller, name)(torch.zeros(2, 4), 1, torch.tensor([-1, 2**31 - 1]))
    assert found.selected_token_ranks.tolist() == [1, 1]


def test_they_are_patched_once(callers):
    weights._patch_v2_ranks()
    first = [getattr(caller, name) for caller, name in callers]
    weights._patch_v2_ranks()
    assert [getattr(caller, name) for caller, name in callers] == first


def test_a_function_of_another_name_is_no_silence(callers):
    for caller, name in callers:
        delattr(caller, name)
    with pytest.raises(AttributeError, match="sampler has none of compute_topk_scores, compute_topk_logprobs"):
        weights._patch_v2_ranks()


class TestInstalledVllm:
    pytestmark = needs_vllm

    def test_both_callers_have_one_of_the_names(self):
        assert len(v2_callers()) == 2
