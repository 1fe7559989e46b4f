"""The requests of one `VLLMEngine.run`, from their admission to their responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evaluator.engine.admission import SharedScores, refusal, refuse
from evaluator.engine.base import Cancel, Generate, Request, Response, Score
from evaluator.engine.vllm.counters import Counters
from evaluator.engine.vllm.requests.in_flight import (
    InFlight,
    InFlightOneStepScore,
    InFlightPromptScore,
    InFlightReferenceScore,
    rows_of,
    to_core,
)
from evaluator.engine.vllm.requests.sampling import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The limits and settings that validate requests and translate them for vLLM."""

    dialect: Dialect
    eos_ids: list[int]
    vocabulary: int
    max_model_len: int  # prompt and generated tokens of a request
    positions: int  # of vLLM's engine: one more, where the model has it
    max_top_logprobs: int
    by_prompt: bool  # a Score is computed from prompt log-probabilities, not by forced decoding
    whole: bool = False  # such a Score reports whole distributions: as top_logprobs, it has the entire vocabulary's


class Batch:
    """The requests in the engine core, the scores that share them, and the responses that are ready."""

    def __init__(self, core: Any, served: Served, counters: Counters, numbers: Iterator[int]) -> None:
        """`core` is vLLM's EngineCoreClient.

        `numbers` gives each request a new id for the core. With steps scheduled ahead, the last step of a run is still
        in progress when the next run begins.
        """
        self._core = core
        self._served = served
        self._counters = counters
        self._numbers = numbers
        self._in_flight: dict[str, InFlight] = {}  # by the core's id
        self._core_ids: dict[str, str] = {}  # of the requests in flight
        self._shared = SharedScores()
        self._ready: deque[Response] = deque()
        self.was_emptied = False  # the last step finished every request that was left

    def __len__(self) -> int:
        """How many requests are in the engine core."""
        return len(self._in_flight)

    @property
    def has_responses(self) -> bool:
        return bool(self._ready)

    def responses(self) -> Iterator[Response]:
        """Hand out the ready responses."""
        while self._ready:
            yield self._ready.popleft()

    def submit(self, given: Sequence[Request | Cancel]) -> None:
        """Cancel, refuse, or put into the engine core."""
        cancelled = [self._cancel(each.request_id) for each in given if isinstance(each, Cancel)]
        core_ids = [core_id for core_id in cancelled if core_id is not None]
        if core_ids:
            self._core.abort_requests(core_ids)
        accepted = [each for each in given if not isinstance(each, Cancel) and self._accepts(each)]
        # A score by prompt log-probabilities is there to check the others: it shares nothing.
        for request in accepted if self._served.by_prompt else self._shared.admit(accepted):
            self._add(request)

    def receive(self, outputs: Sequence[Any]) -> None:
        """Take the EngineCoreOutputs of one step."""
        vocabulary = self._served.vocabulary
        for output, rows in zip(outputs, rows_of(outputs), strict=True):
            pending = self._in_flight.get(output.request_id)
            if pending is None:  # cancelled while this step was under way, or of an earlier run
                continue
            if pending.add(output, rows):
                del self._in_flight[output.request_id], self._core_ids[pending.request.request_id]
                self._count(pending)
                self._ready.extend(self._shared.answer(pending.response().or_error(vocabulary)))
            elif pending.streams:
                self._ready.append(pending.news().or_error(vocabulary))
        self.was_emptied = not self._in_flight

    def abort(self) -> None:
        """Abort the requests that are still in the engine core."""
        if self._in_flight:
            self._core.abort_requests(list(self._in_flight))

    def _cancel(self, request_id: str) -> str | None:
        """Forget a request; returns the core's id, if the core still has the request."""
        core_id = self._core_ids.pop(request_id, None)
        if core_id is not None:
            pending = self._in_flight.pop(core_id)
            if pending.generated:  # otherwise it was waiting for its first step, without any computation
                self._count(pending)
        return core_id

    def _accepts(self, request: Request) -> bool:
        """Whether the engine can answer a request. If not, it gets a response with the reason."""
        served = self._served
        reason = refusal(request, served.max_model_len, served.vocabulary)
        if reason is None and served.by_prompt and isinstance(request, Score):
            # Its prompt holds the continuation, and one token is generated after it.
            length = len(request.prompt_ids) + len(request.continuation_ids)
            if length >= served.positions:
                reason = (
                    f"its {length} tokens fill the model's {served.positions} positions, and scoring by prompt "
                    "log-probabilities needs one more"
                )
        if reason is None and isinstance(request, Generate) and request.top_logprobs > served.max_top_logprobs:
            reason = f"top_logprobs is {request.top_logprobs}, more than {served.max_top_logprobs}"
        if reason is not None:
            self._ready.append(refuse(request, reason))
        return reason is None

    def _add(self, request: Request) -> None:
        served = self._served
        pending: InFlight = InFlight(request)
        if isinstance(request, Generate):
            parameters = served.dialect.generate(request, served.eos_ids, served.vocabulary)
        elif request.reference is not None:
            parameters, pending = served.dialect.reference_score(request), InFlightReferenceScore(request)
        elif served.by_prompt:
            parameters, pending = served.dialect.prompt_score(), InFlightPromptScore(request)
            if served.whole:
                parameters.prompt_logprobs = -1
        elif served.dialect.one_step and len(request.continuation_ids) > 1:
            parameters, pending = served.dialect.one_step_score(request), InFlightOneStepScore(request)
        else:
            parameters = served.dialect.score(request)
        core_id = str(next(self._numbers))
        self._core.add_request(to_core(core_id, pending, parameters))
        self._in_flight[core_id] = pending
        self._core_ids[request.request_id] = core_id

    def _count(self, ended: InFlight) -> None:
        self._counters.end_request(
            prompt_tokens=ended.prompt_tokens, cached_tokens=ended.cached_tokens, generated_tokens=ended.generated
        )
