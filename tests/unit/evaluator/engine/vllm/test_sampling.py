"""Sampling parameters that are copied from a template are those that vLLM makes and
checks one by one."""

import pytest

from tests.support.engines import needs_vllm
from tests.support.requests import generation, scoring

pytestmark = needs_vllm

SCORE = scoring("s", (1, 2, 9), (3, 4))
ASKED = [
    generation("g", (1,), 5),
    generation("g", (1,), 7, top_logprobs=6, stream=[]),
    generation("g", (1,), 5, temperature=1.0, top_p=0.9, seed=12),
    generation("g", (1,), 5, temperature=0.5, seed=2**62),
]
VOCABULARY, EOS = 100, [2, 1]


def slowly(**settings):
    from vllm import SamplingParams

    from evaluator.engine.vllm.sampling import _ALWAYS

    return SamplingParams(**settings, **_ALWAYS)


@pytest.mark.parametrize("v2", [False, True])
def test_scores(v2):
    from evaluator.engine.vllm.prompt_scores import FORCED, SCORED_FROM
    from evaluator.engine.vllm.sampling import Dialect

    forced = (
        {"trace_decode_token_ids": [3, 4]} if v2 else {"extra_args": {FORCED: [3, 4]}}
    )
    for _ in range(2):  # what one request has of its own does not stay in the template
        expected = slowly(
            temperature=0.0, max_tokens=2, logprobs=1, ignore_eos=True, **forced
        )
        assert Dialect(v2=v2).score(SCORE) == expected
        other = Dialect(v2=v2).score(scoring("o", (1,), (7,)))
        assert other.max_tokens == 1
    last = {"trace_decode_token_ids": [4]} if v2 else {"prompt_logprobs": 1}
    assert Dialect(v2=v2, one_step=True).score(SCORE, in_prompt=True) == slowly(
        temperature=0.0,
        max_tokens=1,
        logprobs=1,
        skip_reading_prefix_cache=False,
        ignore_eos=True,
        extra_args={SCORED_FROM: 3} if v2 else {FORCED: [4], SCORED_FROM: 3},
        **last,
    )


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("request_", ASKED)
def test_generations(request_, v2):
    from evaluator.engine.vllm.prompt_scores import NUCLEUS
    from evaluator.engine.vllm.sampling import Dialect

    request = request_
    greedy = request.temperature == 0
    ours = not greedy and not v2 and request.top_p < 1
    for _ in range(2):
        assert Dialect(v2=v2).generate(request, EOS, VOCABULARY) == slowly(
            temperature=request.temperature,
            top_p=1.0 if greedy or ours else request.top_p,
            extra_args={NUCLEUS: request.top_p} if ours else None,
            seed=request.seed,
            max_tokens=request.max_tokens,
            stop_token_ids=EOS,
            logprobs=request.top_logprobs if request.top_logprobs or greedy else None,
        )
