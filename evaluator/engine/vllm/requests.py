"""The requests of one `VLLMEngine.run`: from their admission, through vLLM's engine core, to their responses.

This bypasses vLLM's own front end (`LLMEngine.add_request` and `step`). The front end would validate, copy, detokenise
and build an object for every token, all unused here. That is about a third of the Python time of a small model.
Validation is not needed, as admission.py has checked each request.
"""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.v1.engine import EngineCoreRequest

from evaluator.engine.admission import SharedScores, refusal, refuse
from evaluator.engine.base import Cancel, Divergence, Generate, Request, Response, Score, Streamed
from evaluator.engine.distributions import divergences_of
from evaluator.engine.vllm.arguments import MAX_TOP_LOGPROBS
from evaluator.engine.vllm.counters import Counters
from evaluator.engine.vllm.sampling import prompt_score
from evaluator.engine.vllm.start import Started

Top = tuple[tuple[int, ...], tuple[float, ...]]  # ids and log-probabilities, most likely first

# One generated token's log-probability, rank, the likeliest tokens' ids and log-probabilities, and whether two of
# these log-probabilities are equal. A plain tuple: a step has hundreds. Its width is that of the step's most demanding
# request.
Row = tuple[float, int, tuple[int, ...], tuple[float, ...], bool]


@dataclass(slots=True, eq=False)
class InFlight:
    """One request in the engine, and its tokens so far. If tokens of a Score are in the engine's prompt, vLLM reports
    on them, in tables with one row for each token."""

    request: Request
    prompt: list[int]  # the ids that the engine is given as its prompt
    report_from: int | None = None  # the first row of the report that belongs to the continuation; None: no report
    generates: bool = True  # generated tokens belong to the response; False: the report has every token
    streamed: int | None = None  # so many of the likeliest tokens are handed out with each token as it comes
    cached_tokens: int = 0
    tokens: list[int] = field(default_factory=list)  # that the engine has generated
    rows: list[Row] = field(default_factory=list)  # one for each of these tokens, or none at all
    report: Any = None  # vLLM's LogprobsTensors

    def response(self) -> Response:
        """Everything that came back."""
        if isinstance(self.request, Score):
            return self._scored(self.request)
        top = [top_of(row, self.request.top_logprobs) for row in self.rows] if self.request.top_logprobs else []
        return Response(
            request_id=self.request.request_id,
            token_ids=tuple(self.tokens),
            logprobs=tuple([row[0] for row in self.rows]),
            top_ids=tuple([ids for ids, _ in top]),
            top_logprobs=tuple([logprobs for _, logprobs in top]),
            cached_tokens=self.cached_tokens,
        )

    def _scored(self, request: Score) -> Response:
        """What vLLM reports on the prompt, and then what was generated."""
        found = [(row[0], row[1], *top_of(row, 1)) for row in self.rows] if self.generates else []
        token_ids = tuple(self.tokens)
        divergences: tuple[Divergence, ...] = ()
        if (first := self.report_from) is not None:
            ids, logprobs, ranks = (part[first:].tolist() if first else part.tolist() for part in self.report[:3])
            width = self.report.logprob_token_ids.shape[1]  # own and likeliest tokens; beyond these, divergences
            reported = zip(logprobs, ranks, ids, strict=True)
            found = [(own[0], rank, tuple(ids[1:]), tuple(own[1:width])) for own, rank, ids in reported] + found
            token_ids = request.continuation_ids
            if logprobs and len(logprobs[0]) > width:
                divergences = divergences_of([row[width:] for row in logprobs])
        return Response(
            request_id=request.request_id,
            token_ids=token_ids,
            logprobs=tuple([row[0] for row in found]),
            ranks=tuple([row[1] for row in found]),
            top_ids=tuple([row[2] for row in found]),
            top_logprobs=tuple([row[3] for row in found]),
            cached_tokens=self.cached_tokens,
            divergences=divergences,
        )


class Batch:
    """The requests in the engine core, the scores that share them, and the responses that are ready."""

    def __init__(
        self,
        started: Started,
        vocabulary: int,
        eos_ids: list[int],
        counters: Counters,
        numbers: Iterator[int],
        *,
        whole: bool = False,
    ) -> None:
        """`numbers` gives each request a new id for the core. With steps scheduled ahead, the last step of a run is
        still in progress when the next run begins. `whole`: a Score by prompt log-probabilities reports whole
        distributions; as top_logprobs, it has the entire vocabulary's.
        """
        self._core: Any = started.llm.engine_core  # vLLM's EngineCoreClient
        self._started = started
        self._by_prompt = started.scoring == "prompt_logprobs"  # else, a Score is computed by forced decoding
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        self._counters = counters
        self._numbers = numbers
        self._whole = whole
        self._core_ids: dict[str, str] = {}  # of the requests in flight
        self._shared = SharedScores()
        self.in_flight: dict[str, InFlight] = {}  # the requests in the engine core, by the core's id
        self.ready: deque[Response] = deque()
        self.was_emptied = False  # the last step finished every request that was left

    def submit(self, given: Sequence[Request | Cancel]) -> None:
        """Cancel, refuse, or put into the engine core."""
        cancelled: list[str] = []
        accepted: list[Request] = []
        for each in given:
            if not isinstance(each, Cancel):
                if self._accepts(each):
                    accepted.append(each)
            elif (core_id := self._core_ids.pop(each.request_id, None)) is not None:
                cancelled.append(core_id)
                pending = self.in_flight.pop(core_id)
                if pending.tokens:  # otherwise it was waiting for its first step, without any computation
                    self._count(pending)
        if cancelled:
            self._core.abort_requests(cancelled)
        # A score by prompt log-probabilities is there to check the others: it shares nothing.
        for request in accepted if self._by_prompt else self._shared.admit(accepted):
            self._add(request)

    def receive(self, outputs: Sequence[Any]) -> list[Streamed]:
        """Take the EngineCoreOutputs of one step; returns the tokens that are streamed."""
        streamed: list[Streamed] = []
        table, in_flight = rows_of(outputs), self.in_flight
        for output in outputs:
            tokens = output.new_token_ids
            rows = None if output.new_logprobs is None else list(islice(table, len(tokens)))
            pending = in_flight.get(output.request_id)
            if pending is None:  # cancelled while this step was under way, or of an earlier run
                continue
            if not pending.tokens:  # a preempted request begins again, but its first time counts
                if output.prefill_stats is not None:
                    pending.cached_tokens = output.prefill_stats.num_cached_tokens
                pending.report = output.new_prompt_logprobs_tensors
            pending.tokens += tokens
            if rows:
                pending.rows += rows
                if pending.streamed is not None:
                    for token, row in zip(tokens, rows, strict=True):
                        if math.isnan(row[0]):  # the response will say so
                            pending.streamed = None
                            break
                        streamed.append((pending.request.request_id, token, *top_of(row, pending.streamed)))
            if output.finish_reason is not None:
                del in_flight[output.request_id], self._core_ids[pending.request.request_id]
                self._count(pending)
                self.ready.extend(self._shared.answer(pending.response().or_error(self._vocabulary)))
        self.was_emptied = not in_flight
        return streamed

    def _accepts(self, request: Request) -> bool:
        """Whether the engine can answer a request. If not, it gets a response with the reason."""
        reason = refusal(request, self._started.max_model_len, self._vocabulary)
        if reason is None and self._by_prompt and isinstance(request, Score):
            # Its prompt holds the continuation, and one token is generated after it.
            length = len(request.prompt_ids) + len(request.continuation_ids)
            if length >= self._started.positions:
                reason = (
                    f"its {length} tokens fill the model's {self._started.positions} positions, and scoring by prompt "
                    "log-probabilities needs one more"
                )
        if reason is None and isinstance(request, Generate) and request.top_logprobs > MAX_TOP_LOGPROBS:
            reason = f"top_logprobs is {request.top_logprobs}, more than {MAX_TOP_LOGPROBS}"
        if reason is not None:
            self.ready.append(refuse(request, reason))
        return reason is None

    def _add(self, request: Request) -> None:
        dialect = self._started.dialect
        if isinstance(request, Generate):
            parameters = dialect.generate(request, self._eos_ids, self._vocabulary)
            streamed = request.top_logprobs if request.stream else None
            pending = InFlight(request, list(request.prompt_ids), streamed=streamed)
        elif self._by_prompt and request.reference is None:
            # One token is generated, which is not read. Row i of the report is of the prompt's token i + 1.
            parameters = prompt_score(whole=self._whole)
            prompt = [*request.prompt_ids, *request.continuation_ids]
            pending = InFlight(request, prompt, len(request.prompt_ids) - 1, generates=False)
        elif request.reference is not None or (dialect.one_step and len(request.continuation_ids) > 1):
            # The last token alone is generated. Of a score with a reference, the report has a row for that token too.
            parameters = dialect.score(request, in_prompt=True)
            prompt = [*request.prompt_ids, *request.continuation_ids[:-1]]
            pending = InFlight(request, prompt, 0, generates=request.reference is None)
        else:
            parameters = dialect.score(request)
            pending = InFlight(request, list(request.prompt_ids))
        core_id = str(next(self._numbers))
        self._core.add_request(
            EngineCoreRequest(
                request_id=core_id,
                prompt_token_ids=pending.prompt,
                mm_features=None,
                sampling_params=parameters,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
        )
        self.in_flight[core_id] = pending
        self._core_ids[request.request_id] = core_id

    def _count(self, ended: InFlight) -> None:
        self._counters.end_request(len(ended.prompt), ended.cached_tokens, len(ended.tokens))


def rows_of(outputs: Sequence[Any]) -> Iterator[Row]:
    """A row for each new token of those of a step's EngineCoreOutputs that report log-probabilities.

    vLLM gives each request its rows as views of one table. To turn a view into Python numbers takes microseconds,
    however small it is. So the views of a step are put together again and turned at once.
    """
    reports = [output.new_logprobs for output in outputs if output.new_logprobs is not None]
    if not reports:
        return iter(())
    ids = np.concatenate([report.logprob_token_ids for report in reports])
    logprobs = np.concatenate([report.logprobs for report in reports])
    ranks = np.concatenate([report.sampled_token_ranks for report in reports])
    own, top = logprobs[:, 0], logprobs[:, 1:]  # the first column is the generated token's own
    tied = (top[:, 1:] == top[:, :-1]).any(axis=1)
    return zip(own.tolist(), ranks.tolist(), _tuples(ids[:, 1:]), _tuples(top), tied.tolist(), strict=True)


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
