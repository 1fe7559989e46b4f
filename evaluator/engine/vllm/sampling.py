"""The sampling parameters of requests, which depend on vLLM's model runner.

A continuation is scored by *forced decoding*: the engine generates given tokens
after the prompt. It reports the raw model's log-probabilities and ranks, before
tokens are forced. If the cache allows it, all tokens but the last are part of the
prompt, and the score takes one step (prompt_scores.py).

- V1 runner (CPUs): a sampler of our own (v1/sampler.py) reads its orders from
  `SamplingParams.extra_args`.
- V2 runner (GPUs): vLLM's own trace replay and top-p."""

import copy
import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from evaluator.core.records import TokenIds
from evaluator.engine.base import Generate, Score
from evaluator.engine.vllm.prompt_scores import (
    COMPARED,
    FORCED,
    NUCLEUS,
    REFERENCE,
    SCORED_FROM,
)

_ALWAYS: dict[str, Any] = {
    "detokenize": False,
    "flat_logprobs": True,
    "skip_clone": True,
    "output_kind": RequestOutputKind.FINAL_ONLY,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests are worded for one of vLLM's two runners."""

    v2: bool  # vLLM samples and forces the tokens; False: our own sampler does
    one_step: bool = False  # continuations of several tokens are scored in one step
    # even what is compared with a reference reads the cache token by token, as an
    # answer does
    by_token: bool = False

    def in_prompt(self, request: Score) -> bool:
        """Whether the rows of a continuation are those of a prompt. A distribution
        to keep always comes from there."""
        if request.reference is not None and (
            request.reference.keep or not self.by_token
        ):
            return True
        return self.one_step and len(request.continuation_ids) > 1

    def score(self, request: Score, *, in_prompt: bool = False) -> SamplingParams:
        """Parameters that report a continuation's log-probabilities, ranks and top
        tokens.

        `in_prompt`: the prompt holds all of its tokens but the last, which alone is
        generated. If the cache would provide rows of these tokens, the whole prompt is
        computed. With a reference, every row is read off the prompt.
        """
        forced = list(
            request.continuation_ids[-1:] if in_prompt else request.continuation_ids
        )
        settings: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
        if request.reference is None or not in_prompt:
            settings["logprobs"] = 1
        orders: dict[str, Any] = {} if self.v2 else {FORCED: forced}
        if in_prompt:
            settings["skip_reading_prefix_cache"] = not self.one_step
            # V1 inspects only requests for prompt log-probabilities; V2 inspects all
            # (v2/scores.py)
            if not self.v2:
                settings["prompt_logprobs"] = 1
            orders[SCORED_FROM] = len(request.prompt_ids)
        if request.reference is not None:
            orders |= {FORCED: forced, REFERENCE: dataclasses.asdict(request.reference)}
            orders[COMPARED] = request.continuation_ids
        made = copy.copy(_template(**settings))
        made.max_tokens = len(forced)
        if self.v2:
            made.trace_decode_token_ids = forced
        made.extra_args = orders or None
        return made

    def generate(
        self, request: Generate, eos_ids: list[int], vocabulary: int
    ) -> SamplingParams:
        """Parameters of a greedy or sampled answer that ends with any of `eos_ids`
        or its stop ids, the id included."""
        top = min(request.top_logprobs, vocabulary)
        drawn = request.temperature > 0
        ours = drawn and not self.v2 and request.top_p < 1
        made = copy.copy(
            _template(
                temperature=request.temperature,
                top_p=request.top_p if drawn and not ours else 1.0,
                logprobs=None if drawn and not top else top,
                max_tokens=request.max_tokens,
                stop_token_ids=(*eos_ids, *request.stop_ids),
            )
        )
        if drawn:
            made.seed = request.seed
        if ours:
            made.extra_args = {NUCLEUS: request.top_p}
        return made


def prompt_score() -> SamplingParams:
    """Parameters that report prompt log-probabilities: the slow way to score, on either
    runner.

    vLLM then computes the whole prompt. `skip_reading_prefix_cache` must keep its
    default. If vLLM reads the cache, the V1 runner returns uninitialised memory for the
    cached rows.
    """
    return SamplingParams(
        temperature=0.0, max_tokens=1, prompt_logprobs=1, ignore_eos=True, **_ALWAYS
    )


@lru_cache(maxsize=1024)
def _template(*, stop_token_ids: TokenIds = (), **settings: Any) -> SamplingParams:
    """Parameters without each request's own fields. vLLM checks them once; then they
    are copied, as vLLM itself does where `skip_clone` allows it."""
    return SamplingParams(stop_token_ids=list(stop_token_ids), **settings, **_ALWAYS)
