"""The sampling parameters of requests, which depend on vLLM's model runner.

A continuation is scored by *forced decoding*: the engine generates given tokens after the prompt. It reports the raw
model's log-probabilities and ranks, before tokens are forced. If the cache allows it, all tokens but the last are part
of the prompt, and the score takes one step (prompt_scores.py).

- V1 runner (CPUs): a sampler of our own (v1/sampler.py) reads its orders from `SamplingParams.extra_args`.
- V2 runner (GPUs): vLLM's own trace replay and top-p.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from evaluator.engine.base import Generate, Score
from evaluator.engine.vllm.prompt_scores import FORCED, NUCLEUS, REFERENCE, SCORED_FROM

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

    def engine_arguments(self) -> dict[str, Any]:
        """What vLLM's EngineArgs must carry for that runner."""
        if self.v2:
            return {"enable_trace_replay": True}
        from evaluator.engine.vllm.v1.sampler import Orders

        return {"logits_processors": [Orders], "async_scheduling": False}

    def score(self, request: Score) -> SamplingParams:
        """Parameters that report the continuation's log-probabilities, ranks and top tokens, by forced decoding."""
        made = _template(logprobs=1, ignore_eos=True)
        made.max_tokens = len(request.continuation_ids)
        return self._ordered(made, list(request.continuation_ids))

    def one_step_score(self, request: Score) -> SamplingParams:
        """The same in one step: only the continuation's last token is generated."""
        made = _template(max_tokens=1, logprobs=1, ignore_eos=True, **self._in_prompt(reads_cache=True))
        return self._ordered(made, [request.continuation_ids[-1]], {SCORED_FROM: len(request.prompt_ids)})

    def reference_score(self, request: Score) -> SamplingParams:
        """The same for a score with a reference: all of its rows are read off the prompt.

        If the cache would provide some of these rows, the whole prompt is computed.
        """
        assert request.reference is not None
        made = _template(max_tokens=1, ignore_eos=True, **self._in_prompt(reads_cache=self.one_step))
        last = [request.continuation_ids[-1]]
        reference = dataclasses.asdict(request.reference)
        return self._ordered(made, last, {FORCED: last, SCORED_FROM: len(request.prompt_ids), REFERENCE: reference})

    def _in_prompt(self, *, reads_cache: bool) -> dict[str, Any]:
        """The settings of a request whose prompt includes the continuation. The V1 runner inspects only requests for
        prompt log-probabilities; the V2 runner inspects all (v2/scores.py)."""
        return {"skip_reading_prefix_cache": not reads_cache} | ({} if self.v2 else {"prompt_logprobs": 1})

    def _ordered(self, made: SamplingParams, forced: list[int], orders: dict[str, Any] | None = None) -> SamplingParams:
        """`made`, generating the tokens `forced`, with orders for the worker."""
        if self.v2:
            made.trace_decode_token_ids = forced
            made.extra_args = orders
        else:
            made.extra_args = {FORCED: forced, **(orders or {})}
        return made

    def prompt_score(self) -> SamplingParams:
        """Parameters that report prompt log-probabilities: the slow way to score, on either runner.

        vLLM then computes the whole prompt. `skip_reading_prefix_cache` must keep its default. If vLLM reads the cache,
        the V1 runner returns uninitialised memory for the cached rows.
        """
        return SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, ignore_eos=True, **_ALWAYS)

    def generate(self, request: Generate, eos_ids: list[int], vocabulary: int) -> SamplingParams:
        """Parameters of a greedy or sampled answer that ends with any of `eos_ids`, the id included."""
        top = min(request.top_logprobs, vocabulary)
        greedy = request.temperature == 0
        ours = not greedy and not self.v2 and request.top_p < 1
        made = _template(
            temperature=request.temperature,
            top_p=1.0 if greedy or ours else request.top_p,
            stop_token_ids=tuple(eos_ids),
            logprobs=top if top or greedy else None,
        )
        made.max_tokens = request.max_tokens
        if not greedy:
            made.seed = request.seed
        if ours:
            made.extra_args = {NUCLEUS: request.top_p}
        return made


def _template(*, temperature: float = 0.0, **settings: Any) -> SamplingParams:
    """Parameters without each request's own fields. vLLM checks them once; then they are copied."""
    return copy.copy(_checked(temperature=temperature, **settings))  # as vLLM itself clones what `skip_clone` allows


@lru_cache(maxsize=64)
def _checked(*, stop_token_ids: tuple[int, ...] = (), **settings: Any) -> SamplingParams:
    return SamplingParams(stop_token_ids=list(stop_token_ids), **settings, **_ALWAYS)
