"""Turns our requests into those of vLLM's engine core, and its outputs into responses.

This bypasses vLLM's own front end (`LLMEngine.add_request` and `step`). The front end would validate, copy, detokenise
and build an object for every token, all unused here. That is about a third of the Python time of a small model.
Validation is not needed, as admission.py has checked each request.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from evaluator.engine.base import Generate, Request, Response, Score
from evaluator.engine.distributions import divergences_of

Top = tuple[tuple[int, ...], tuple[float, ...]]  # ids and log-probabilities, most likely first

# One generated token's log-probability, rank, the likeliest tokens' ids and log-probabilities, and whether two of
# these log-probabilities are equal. A plain tuple: a step has hundreds. Its width is that of the step's most demanding
# request.
Row = tuple[float, int, tuple[int, ...], tuple[float, ...], bool]


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
    """One request in the engine, and its tokens so far."""

    __slots__ = ("_handed", "_rows", "_tokens", "_wanted", "cached_tokens", "request", "streams")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cached_tokens = 0
        self._wanted = 1 if isinstance(request, Score) else request.top_logprobs
        # Whether the request streams its tokens, and how many it has streamed.
        self.streams = isinstance(request, Generate) and request.stream
        self._handed = 0
        self._tokens: list[int] = []
        self._rows: list[Row] = []  # one for each token, or none at all

    def prompt(self) -> list[int]:
        """The ids that the engine is given as its prompt."""
        return list(self.request.prompt_ids)

    @property
    def prompt_tokens(self) -> int:
        """The length of `prompt`."""
        return len(self.request.prompt_ids)

    @property
    def generated(self) -> int:
        """Tokens that the engine has generated."""
        return len(self._tokens)

    def add(self, output: Any, rows: Sequence[Row]) -> bool:
        """Take one EngineCoreOutput with its rows (`reports.rows_of`); returns whether it was the last."""
        self._tokens += output.new_token_ids
        self._rows += rows
        if output.prefill_stats is not None:
            # A preempted request computes its prompt again; its first time counts.
            self.cached_tokens = self.cached_tokens or output.prefill_stats.num_cached_tokens
        return output.finish_reason is not None

    def news(self) -> Response:
        """What came since the last call."""
        first, self._handed = self._handed, len(self._tokens)
        return self._response(first, final=False)

    def response(self) -> Response:
        """Everything that came back."""
        return self._response(0, final=True)

    def _response(self, first: int, *, final: bool) -> Response:
        rows = self._rows[first:]
        top = [top_of(row, self._wanted) for row in rows] if self._wanted else []
        return Response(
            request_id=self.request.request_id,
            final=final,
            token_ids=tuple(self._tokens[first:]),
            logprobs=tuple([row[0] for row in rows]),
            ranks=tuple([row[1] for row in rows]) if isinstance(self.request, Score) else (),
            top_ids=tuple([ids for ids, _ in top]),
            top_logprobs=tuple([logprobs for _, logprobs in top]),
            cached_tokens=self.cached_tokens,
        )


class _InFlightInPrompt(InFlight):
    """A Score with some of its tokens in the engine's prompt, which reports on them."""

    __slots__ = ("_continuation", "_in_prompt")

    def __init__(self, request: Score) -> None:
        super().__init__(request)
        self._continuation = request.continuation_ids
        self._in_prompt: Any = None  # vLLM's LogprobsTensors

    def add(self, output: Any, rows: Sequence[Row]) -> bool:
        if output.new_prompt_logprobs_tensors is not None:
            self._in_prompt = output.new_prompt_logprobs_tensors
        return super().add(output, rows)

    def _reported(self, first: int) -> Response:
        """The scores from a row of the report on."""
        rows = self._in_prompt
        values = rows.logprobs[first:].tolist()  # [tokens of the continuation, own and likeliest, and divergences]
        width = rows.logprob_token_ids.shape[1]
        return Response(
            request_id=self.request.request_id,
            token_ids=self._continuation,
            logprobs=tuple(own for own, *_ in values),
            ranks=tuple(rows.selected_token_ranks[first:].tolist()),
            top_ids=tuple(tuple(ids) for _, *ids in rows.logprob_token_ids[first:].tolist()),
            top_logprobs=tuple(tuple(row[1:width]) for row in values),
            cached_tokens=self.cached_tokens,
            divergences=divergences_of([row[width:] for row in values]) if rows.logprobs.shape[1] > width else (),
        )


class InFlightOneStepScore(_InFlightInPrompt):
    """A Score whose last token alone is generated; the report has one row for each of the others."""

    def prompt(self) -> list[int]:
        return [*self.request.prompt_ids, *self._continuation[:-1]]

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self._continuation) - 1

    def response(self) -> Response:
        before, last = self._reported(0), super().response()
        return dataclasses.replace(
            before,
            logprobs=before.logprobs + last.logprobs,
            ranks=before.ranks + last.ranks,
            top_ids=before.top_ids + last.top_ids,
            top_logprobs=before.top_logprobs + last.top_logprobs,
        )


class InFlightReferenceScore(InFlightOneStepScore):
    """A Score with a reference: the report has a row for the last token as well."""

    def response(self) -> Response:
        return self._reported(0)


class InFlightPromptScore(_InFlightInPrompt):
    """A Score by prompt log-probabilities: the engine's prompt is prompt and continuation, and it generates one token
    that is not read. Row i of the report is of the prompt's token i + 1."""

    def prompt(self) -> list[int]:
        return [*self.request.prompt_ids, *self._continuation]

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self._continuation)

    def response(self) -> Response:
        return self._reported(len(self.request.prompt_ids) - 1)


def rows_of(outputs: Sequence[Any]) -> list[Sequence[Row]]:
    """For each of a step's EngineCoreOutputs, one row per new token; empty if it reports none.

    vLLM gives each request its rows as views of one table. To turn a view into Python numbers takes microseconds,
    however small it is. So the views of a step are put together again and turned at once.
    """
    reports = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    if not reports:
        return [()] * len(outputs)
    ids = np.concatenate([report.logprob_token_ids for report in reports])
    logprobs = np.concatenate([report.logprobs for report in reports])
    ranks = np.concatenate([report.sampled_token_ranks for report in reports])
    own, top = logprobs[:, 0], logprobs[:, 1:]  # the first column is the generated token's own
    tied = (top[:, 1:] == top[:, :-1]).any(axis=1)
    rows = zip(own.tolist(), ranks.tolist(), _tuples(ids[:, 1:]), _tuples(top), tied.tolist(), strict=True)
    if len(ids) == len(reports):  # one new token each, as nearly always
        return [() if output.new_logprobs is None else (next(rows),) for output in outputs]
    counts = [0 if output.new_logprobs is None else len(output.new_logprobs.logprobs) for output in outputs]
    return [tuple(islice(rows, count)) for count in counts]


def top_of(row: Row, width: int) -> Top:
    """The `width` most likely tokens, ties to the lower id: torch.topk leaves their order open. Which of several tied
    tokens are listed stays open."""
    _, _, ids, logprobs, tied = row
    ids, logprobs = ids[:width], logprobs[:width]
    if not tied:
        return ids, logprobs
    pairs = sorted(zip(logprobs, ids, strict=True), key=lambda pair: (-pair[0], pair[1]))
    return tuple(token for _, token in pairs), tuple(logprob for logprob, _ in pairs)


def _tuples(table: npt.NDArray[Any]) -> list[tuple[Any, ...]]:
    """The rows of a table. Its columns are zipped in C."""
    return list(zip(*table.T.tolist(), strict=True)) if table.shape[1] else [()] * len(table)
