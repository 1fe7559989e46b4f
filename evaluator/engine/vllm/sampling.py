"""How vLLM is asked to score and to sample, which depends on its model runner.

A continuation is scored by *forced decoding*: the engine has to generate given tokens after the prompt, and reports
what the model thought of them. That costs the prompt once for all continuations (it stays in the prefix cache) and
one decode step per token; the log-probabilities and ranks are the raw model's, taken before anything is forced.

- V1 runner (CPUs): a sampler of our own, see sampler.py, which reads its orders from `SamplingParams.extra_args`;
- V2 runner (GPUs): vLLM's own trace replay and top-p. Written from vLLM 0.32's source; **not yet tested on a GPU**.
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
from evaluator.engine.vllm.one_step import REFERENCE, SCORED_FROM
from evaluator.engine.vllm.sampler import FORCED, NUCLEUS, Orders

_ALWAYS: dict[str, Any] = {
    "detokenize": False,
    "flat_logprobs": True,
    "skip_clone": True,
    "output_kind": RequestOutputKind.FINAL_ONLY,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How requests are worded for one of vLLM's two runners."""

    v2: bool  # the tokens are sampled by vLLM; False: by our own sampler
    replays: bool = True  # the V2 runner can be told what to generate (trace replay)
    one_step: bool = False  # continuations of several tokens are scored in one step
    references: bool = False  # whole distributions can be kept and compared

    def engine_arguments(self) -> dict[str, Any]:
        """What vLLM's EngineArgs must carry for that runner."""
        if self.v2:
            return {"enable_trace_replay": True} if self.replays else {}
        return {"logits_processors": [Orders], "async_scheduling": False}

    def score(self, request: Score) -> SamplingParams:
        """Parameters that report the continuation's log-probabilities, ranks and top tokens, by forced decoding."""
        forced = list(request.continuation_ids)
        made = _template(logprobs=1, ignore_eos=True)
        made.max_tokens = len(forced)
        if self.v2:
            made.trace_decode_token_ids = forced
        else:
            made.extra_args = {FORCED: forced}
        return made

    def one_step_score(self, request: Score) -> SamplingParams:
        """The same in one step: only the continuation's last token is generated (one_step.py)."""
        made = _template(max_tokens=1, logprobs=1, prompt_logprobs=1, skip_reading_prefix_cache=False, ignore_eos=True)
        made.extra_args = {FORCED: [request.continuation_ids[-1]], SCORED_FROM: len(request.prompt_ids)}
        return made

    def reference_score(self, request: Score) -> SamplingParams:
        """The same for a score with a reference: all of its rows are read off the prompt.

        Where the cache cannot be kept from answering what is wanted, the whole prompt is computed.
        """
        assert request.reference is not None
        made = _template(max_tokens=1, prompt_logprobs=1, skip_reading_prefix_cache=not self.one_step, ignore_eos=True)
        made.extra_args = {
            FORCED: [request.continuation_ids[-1]],
            SCORED_FROM: len(request.prompt_ids),
            REFERENCE: dataclasses.asdict(request.reference),
        }
        return made

    def prompt_score(self) -> SamplingParams:
        """Parameters that report prompt log-probabilities: the slow way to score, on either runner.

        vLLM then computes the whole prompt. `skip_reading_prefix_cache` must keep its default: if it reads
        the cache all the same, the V1 runner returns uninitialised memory for the rows that came from it.
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
    """Parameters to be completed with what each request has of its own. vLLM checks them once; then they are copied."""
    return copy.copy(_checked(temperature=temperature, **settings))  # as vLLM itself clones what `skip_clone` allows


@lru_cache(maxsize=64)
def _checked(*, stop_token_ids: tuple[int, ...] = (), **settings: Any) -> SamplingParams:
    return SamplingParams(stop_token_ids=list(stop_token_ids), **settings, **_ALWAYS)  # vLLM 0.24 refuses a tuple
