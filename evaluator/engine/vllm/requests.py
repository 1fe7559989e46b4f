"""Requests on their way into vLLM's engine core, and responses on their way out.

They go to the core directly. vLLM's own front end (`LLMEngine.add_request` and `step`) would validate, copy and
detokenise, and build an object for every token: about a third of the Python time of a small model, for nothing that is
read here. admission.py has already checked each request.
"""

from __future__ import annotations

import dataclasses
import time
from math import isnan
from typing import Any

from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from evaluator.engine.base import Generate, Request, Response, Score, Token


def to_core(core_id: str, pending: InFlight, parameters: SamplingParams) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=core_id,
        prompt_token_ids=pending.prompt(),
        mm_features=None,
        sampling_params=parameters,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
    )


class InFlight:
    """One request in the engine, and what has come back for it."""

    __slots__ = (
        *("_handed", "_logprobs", "_ranks", "_scored", "_tokens", "_top_ids", "_top_logprobs", "_wanted"),
        *("cached_tokens", "request", "streams"),
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cached_tokens = 0
        self._scored = isinstance(request, Score)
        self._wanted = 1 if isinstance(request, Score) else request.top_logprobs
        # Whether its tokens are handed out as they come, and how many have been.
        self.streams = isinstance(request, Generate) and request.stream
        self._handed = 0
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._ranks: list[int] = []
        self._top_ids: list[tuple[int, ...]] = []
        self._top_logprobs: list[tuple[float, ...]] = []

    def prompt(self) -> list[int]:
        """The ids that the engine is given as its prompt."""
        return list(self.request.prompt_ids)

    @property
    def generated(self) -> int:
        """Tokens that the engine has generated."""
        return len(self._tokens)

    def add(self, output: Any) -> bool:
        """Take one EngineCoreOutput; returns whether it was the last."""
        self._tokens += output.new_token_ids
        if output.new_logprobs is not None:
            self._read(output.new_logprobs)
        if output.prefill_stats is not None:
            # A preempted request computes its prompt again; its first time counts.
            self.cached_tokens = self.cached_tokens or output.prefill_stats.num_cached_tokens
        return output.finish_reason is not None

    def _read(self, rows: Any) -> None:
        """Take vLLM's LogprobsLists: numpy rows of [1 + top] ids and values, a row for each new token."""
        stop = self._wanted + 1  # a batch is as wide as its most demanding request
        values_of = rows.logprobs.tolist()
        self._logprobs += [values[0] for values in values_of]  # the first column is the generated token's own
        if stop > 1:
            for ids, values in zip(rows.logprob_token_ids.tolist(), values_of, strict=True):
                best, best_values = tuple(ids[1:stop]), tuple(values[1:stop])
                if len(set(best_values)) < len(best_values):
                    best, best_values = _ordered(best, best_values)
                self._top_ids.append(best)
                self._top_logprobs.append(best_values)
        if self._scored:
            self._ranks += rows.sampled_token_ranks.tolist()

    def news(self) -> Response:
        """What came since the last call."""
        first, self._handed = self._handed, len(self._tokens)
        return Response(
            request_id=self.request.request_id,
            final=False,
            token_ids=tuple(self._tokens[first:]),
            logprobs=tuple(self._logprobs[first:]),
            top_ids=tuple(self._top_ids[first:]),
            top_logprobs=tuple(self._top_logprobs[first:]),
            cached_tokens=self.cached_tokens,
        )

    def tokens(self) -> list[Token]:
        """What came since the last call, but for what is no number: from there on, only the final response tells."""
        first, self._handed = self._handed, len(self._tokens)
        name = self.request.request_id
        if self._handed == first + 1 and self._wanted and not isnan(self._logprobs[first]):  # as nearly always
            return [Token(name, self._tokens[first], self._top_ids[first], self._top_logprobs[first])]
        found: list[Token] = []
        for place in range(first, self._handed):
            if isnan(self._logprobs[place]):
                self.streams = False
                break
            top = (self._top_ids[place], self._top_logprobs[place]) if self._wanted else ((), ())
            found.append(Token(name, self._tokens[place], *top))
        return found

    def response(self) -> Response:
        """Everything that came back."""
        return Response(
            request_id=self.request.request_id,
            token_ids=tuple(self._tokens),
            logprobs=tuple(self._logprobs),
            ranks=tuple(self._ranks),
            top_ids=tuple(self._top_ids),
            top_logprobs=tuple(self._top_logprobs),
            cached_tokens=self.cached_tokens,
        )


class _InFlightInPrompt(InFlight):
    """A Score some of whose tokens stand in the engine's prompt, which reports on them."""

    __slots__ = ("_continuation", "_rows")

    def __init__(self, request: Score) -> None:
        super().__init__(request)
        self._continuation = request.continuation_ids
        self._rows: Any = None  # vLLM's LogprobsTensors

    def add(self, output: Any) -> bool:
        if output.new_prompt_logprobs_tensors is not None:
            self._rows = output.new_prompt_logprobs_tensors
        return super().add(output)

    def _reported(self, first: int) -> Response:
        """The scores from a row of the report on."""
        rows = self._rows
        values = rows.logprobs[first:].tolist()  # [tokens of the continuation, own and top one]
        return Response(
            request_id=self.request.request_id,
            token_ids=self._continuation,
            logprobs=tuple(own for own, _ in values),
            ranks=tuple(rows.selected_token_ranks[first:].tolist()),
            top_ids=tuple((top,) for _, top in rows.logprob_token_ids[first:].tolist()),
            top_logprobs=tuple((top,) for _, top in values),
            cached_tokens=self.cached_tokens,
        )


class InFlightOneStepScore(_InFlightInPrompt):
    """A Score whose last token alone is generated; the report has one row for each of the others (one_step.py)."""

    def prompt(self) -> list[int]:
        return [*self.request.prompt_ids, *self._continuation[:-1]]

    def response(self) -> Response:
        before, last = self._reported(0), super().response()
        return dataclasses.replace(
            before,
            logprobs=before.logprobs + last.logprobs,
            ranks=before.ranks + last.ranks,
            top_ids=before.top_ids + last.top_ids,
            top_logprobs=before.top_logprobs + last.top_logprobs,
        )


class InFlightPromptScore(_InFlightInPrompt):
    """A Score by prompt log-probabilities: the engine's prompt is prompt and continuation, and it generates one token
    that nobody reads. Row i of the report is of the prompt's token i + 1."""

    def prompt(self) -> list[int]:
        return [*self.request.prompt_ids, *self._continuation]

    def response(self) -> Response:
        return self._reported(len(self.request.prompt_ids) - 1)


def _ordered(ids: tuple[int, ...], values: tuple[float, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ties to the lower id: torch.topk leaves their order open. Which of several tied tokens are listed stays open."""
    pairs = sorted(zip(values, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return tuple(token for _, token in pairs), tuple(value for value, _ in pairs)
