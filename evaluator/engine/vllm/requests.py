"""The requests of one `VLLMEngine.run`: from their admission, through vLLM's engine core, to their responses.

This bypasses vLLM's own front end (`LLMEngine.add_request` and `step`). The front end would validate, copy, detokenise
and build an object for every token, all unused here. That is about a third of the Python time of a small model.
Validation is not needed, as admission.py has checked each request."""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from vllm.v1.engine import EngineCoreRequest

from evaluator.engine.admission import SharedScores, refusal, refuse
from evaluator.engine.base import Cancel, Divergence, Generate, Request, Response, Score, Streamed
from evaluator.engine.distributions import WIDTH, divergences_of
from evaluator.engine.vllm.arguments import MAX_TOP_LOGPROBS
from evaluator.engine.vllm.counters import Counters
from evaluator.engine.vllm.sampling import prompt_score
from evaluator.engine.vllm.start import Started


class InFlight(msgspec.Struct, eq=False):
    """One request in the engine, and its tokens so far. If tokens of a Score are in the engine's prompt, vLLM reports
    on them, in tables with one row for each token."""

    request: Request
    prompt: list[int]  # the ids that the engine is given as its prompt
    top: int = 1  # so many of the likeliest tokens are reported with each generated one
    report_from: int | None = None  # the first row of the report that belongs to the continuation; None: no report
    streamed: bool = False  # tokens are handed out as they come
    cached_tokens: int | None = None  # None: its first step is not over
    tokens: list[int] = []  # that the engine has generated without log-probabilities
    rows: list[Streamed] = []  # the tokens with log-probabilities
    ranks: list[int] | None = None  # theirs, of a Score
    report: Any = None  # vLLM's LogprobsTensors
    compared: list[list[float]] | None = None  # of a Score that is read token by token: its table of divergences

    def response(self) -> Response:
        """Everything that came back: of a Score, what vLLM reports on the prompt, and then what was generated."""
        _, tokens, top_ids, top_logprobs, logprobs = zip(*self.rows, strict=True) if self.rows else ((),) * 5
        ranks = tuple(self.ranks or ())
        divergences: tuple[Divergence, ...] = divergences_of(self.compared or ())
        if self.report_from is not None:
            assert isinstance(self.request, Score)
            ids, tables, reported = (part[self.report_from :].tolist() for part in self.report[:3])
            width = self.report.logprob_token_ids.shape[1]  # own and likeliest tokens; beyond these, divergences
            tokens = self.request.continuation_ids
            logprobs = (*[row[0] for row in tables], *logprobs)
            ranks = (*reported, *ranks)
            top_ids = (*[tuple(row[1:]) for row in ids], *top_ids)
            top_logprobs = (*[tuple(row[1:width]) for row in tables], *top_logprobs)
            if tables and len(tables[0]) > width:
                divergences = divergences_of([row[width:] for row in tables])
        return Response(
            request_id=self.request.request_id,
            token_ids=tokens or tuple(self.tokens),
            logprobs=logprobs,
            ranks=ranks,
            top_ids=top_ids if self.top else (),
            top_logprobs=top_logprobs if self.top else (),
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
        distributions; as top_logprobs, it has the entire vocabulary's."""
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
                if pending.cached_tokens is not None:  # else it waited for its first step
                    self._count(pending)
        if cancelled:
            self._core.abort_requests(cancelled)
        # A score by prompt log-probabilities is there to check the others: it shares nothing.
        for request in accepted if self._by_prompt else self._shared.admit(accepted):
            self._add(request)

    def receive(self, outputs: Sequence[Any]) -> list[Streamed]:
        """Take the EngineCoreOutputs of one step; returns the tokens that are streamed."""
        in_flight = self.in_flight
        reporting: list[InFlight] = []  # one for each new token with log-probabilities
        tokens: list[int] = []
        reports: list[Any] = []
        ended: dict[str, InFlight] = {}
        for output in outputs:
            pending = in_flight.get(output.request_id)
            if pending is None:  # cancelled while this step was under way, or of an earlier run
                continue
            if pending.cached_tokens is None:  # a preempted request begins again, but its first time counts
                stats = output.prefill_stats
                pending.cached_tokens = 0 if stats is None else stats.num_cached_tokens
                pending.report = output.new_prompt_logprobs_tensors
            new, report = output.new_token_ids, output.new_logprobs
            if report is None:
                pending.tokens += new
            else:
                reporting += [pending] * len(new)
                tokens += new
                reports.append(report)
                if pending.ranks is not None:
                    pending.ranks += report.sampled_token_ranks.tolist()
                if pending.compared is not None:
                    pending.compared += report.logprobs[:, -WIDTH:].tolist()
            if output.finish_reason is not None:
                ended[output.request_id] = pending
        streamed: list[Streamed] = []
        for pending, row in zip(reporting, rows_of(reporting, tokens, reports), strict=True):
            pending.rows.append(row)
            if pending.streamed:
                if math.isnan(row[4]):  # the response will say so
                    pending.streamed = False
                else:
                    streamed.append(row)
        for core_id, pending in ended.items():
            del in_flight[core_id], self._core_ids[pending.request.request_id]
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
            pending = InFlight(request, list(request.prompt_ids), request.top_logprobs, streamed=request.stream)
        elif self._by_prompt and request.reference is None:
            # One token is generated, which is not read. Row i of the report is of the prompt's token i + 1.
            parameters = prompt_score(whole=self._whole)
            prompt = [*request.prompt_ids, *request.continuation_ids]
            pending = InFlight(request, prompt, report_from=len(request.prompt_ids) - 1)
        elif dialect.in_prompt(request):
            # The last token alone is generated. Of a score with a reference, the report has a row for that token too.
            parameters = dialect.score(request, in_prompt=True)
            prompt = [*request.prompt_ids, *request.continuation_ids[:-1]]
            pending = InFlight(request, prompt, report_from=0, ranks=[])
        else:
            parameters = dialect.score(request)
            pending = InFlight(request, list(request.prompt_ids), ranks=[], compared=[] if request.reference else None)
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
        generated = ended.rows or ended.tokens
        self._counters.end_request(len(ended.prompt), ended.cached_tokens or 0, len(generated))


def rows_of(reporting: Sequence[InFlight], tokens: Sequence[int], reports: Sequence[Any]) -> Sequence[Streamed]:
    """The new `tokens` of requests that are `reporting`, in the order of the rows of vLLM's LogprobsLists.

    vLLM gives each request its rows as views of one table. To turn a view into Python numbers takes microseconds,
    however small it is. So the views of a step are put together again and turned at once. The table is as wide as the
    step's most demanding request needs."""
    if not reports:
        return ()
    ids = np.concatenate([report.logprob_token_ids for report in reports])[:, 1:]
    logprobs = np.concatenate([report.logprobs for report in reports])[:, : 1 + ids.shape[1]]  # without divergences
    own, top, wide = logprobs[:, 0].tolist(), logprobs[:, 1:], ids.shape[1]  # the token itself is in the first column
    tied = (top[:, 1:] == top[:, :-1]).any(axis=1).tolist()
    both: list[list[tuple[Any, ...]]] = [  # columns are zipped in C
        list(zip(*each.T.tolist(), strict=True)) if wide else [()] * len(own) for each in (ids, top)
    ]
    top_ids, top_logprobs = both
    for place, (pending, ties) in enumerate(zip(reporting, tied, strict=True)):
        if pending.top and (ties or pending.top < wide):
            top_ids[place], top_logprobs[place] = best_of(top_ids[place], top_logprobs[place], pending.top)
    names = [pending.request.request_id for pending in reporting]
    return list(zip(names, tokens, top_ids, top_logprobs, own, strict=True))


def best_of(ids: tuple[int, ...], logprobs: tuple[float, ...], width: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The `width` most likely tokens, ties to the lower id: torch.topk leaves their order open. Which of several tied
    tokens are listed stays open."""
    pairs = sorted(zip(logprobs[:width], ids, strict=False), key=lambda pair: (-pair[0], pair[1]))
    return tuple([token for _, token in pairs]), tuple([logprob for logprob, _ in pairs])
