"""What a score in the engine's prompt makes of vLLM's report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluator.engine.base import Score
from tests.support.engines import needs_vllm

pytestmark = needs_vllm

ASKED = Score(request_id="s", prompt_ids=(7, 8), continuation_ids=(1, 2))


def output(columns: int) -> Any:
    """A report of the prompt (8, 1, 2) with so many of the likeliest tokens."""
    from vllm.v1.outputs import LogprobsTensors

    ids = torch.tensor([[token, *(2, 1, 0)[:columns]] for token in (8, 1, 2)])
    logprobs = torch.tensor([[-3.0 + token, *(-1.0, -2.0, -3.0)[:columns]] for token in (0, 1, 2)])
    tables = LogprobsTensors(ids, logprobs, torch.tensor([5, 2, 1]))
    return SimpleNamespace(
        new_token_ids=[0], new_prompt_logprobs_tensors=tables, prefill_stats=None, finish_reason="length"
    )


@pytest.mark.parametrize("columns", [1, 3])
def test_a_report_has_as_many_likeliest_tokens_as_vllm_gives(columns):
    from evaluator.engine.vllm.requests.in_flight import InFlightPromptScore

    pending = InFlightPromptScore(ASKED)
    assert pending.add(output(columns), [])
    answer = pending.response()
    assert (answer.logprobs, answer.ranks) == ((-2.0, -1.0), (2, 1))
    assert answer.top_ids == ((2, 1, 0)[:columns],) * 2
    assert answer.top_logprobs == ((-1.0, -2.0, -3.0)[:columns],) * 2
    assert answer.divergences == ()


def test_whole_distributions_are_requested_where_they_are_served():
    from evaluator.engine.vllm.counters import Counters
    from evaluator.engine.vllm.requests.batch import Batch, Served
    from evaluator.engine.vllm.requests.sampling import Dialect

    for whole, requested in ((False, 1), (True, -1)):
        given: list[Any] = []
        served = Served(
            dialect=Dialect(v2=True),
            eos_ids=[0],
            vocabulary=64,
            max_model_len=64,
            positions=64,
            max_top_logprobs=1,
            by_prompt=True,
            whole=whole,
        )
        Batch(SimpleNamespace(add_request=given.append), served, Counters(), iter(range(9))).submit([ASKED])
        assert [each.sampling_params.prompt_logprobs for each in given] == [requested]
