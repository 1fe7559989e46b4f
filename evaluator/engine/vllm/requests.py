"""The requests of one `VLLMEngine.run`: from their admission, through vLLM's engine
core, to their responses.

This bypasses vLLM's own front end (`LLMEngine.add_request` and `step`). The front
end would validate, copy, detokenise and build an object for every token, all unused
here. That is about a third of the Python time of a small model. Validation is not
needed, as admission.py has checked each request."""

import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from vllm.v1.engine import EngineCoreRequest

from evaluator.engine.admission import SharedScores, refusal, refuse
from evaluator.engine.base import Cancel, Generate, Request, Response, Score, Streamed
from evaluator.engine.distributions import divergences_of
from evaluator.engine.vllm.arguments import MAX_TOP_LOGPROBS
from evaluator.engine.vllm.counters import Counters
from evaluator.engine.vllm.sampling import prompt_score
from evaluator.engine.vllm.start import Started
from evaluator.engine.vllm.step_logprobs import StepTable


class InFlight(msgspec.Struct, eq=False):
    """One request in the engine, and its tokens so far. If tokens of a Score are in
    the engine's prompt, vLLM reports on them, in tables with one row for each token."""

    request: Request
    prompt_tokens: int  # of the engine's prompt
    top: int = 1  # so many of the likeliest tokens are reported with each generated one
    # the first row of the report that belongs to the continuation; None: no report
    report_from: int | None = None
    cached_tokens: int | None = None  # None: its first step is not over
    tokens: list[int] = []  # that the engine has generated without log-probabilities
    # the tokens with log-probabilities; the request's own list, if it is streamed
    rows: list[Streamed] = []
    ranks: list[int] | None = None  # theirs, of a Score
    report: Any = None  # vLLM's LogprobsTensors
    # of a Score that is read token by token: its table of divergences
    compared: list[list[float]] | None = None

    @property
    def streams(self) -> bool:
        """Whether its tokens go to the request's own list, as they do until one is
        NaN."""
        return isinstance(self.request, Generate) and self.rows is self.request.stream

    def append(self, table: StepTable, start: int) -> None:
        """Take a token with log-probabilities."""
        if self.streams and math.isnan(table.logprobs[start - 1]):
            # the response will say so, and the stream has no more tokens
            self.rows = self.rows.copy()
        # Of a thought, nobody looks at other tokens: it need not keep all tables of its
        # steps.
        self.rows.append((table, start) if self.top else table.alone(start))
        row = (start - 1) // table.width
        if self.ranks is not None:
            self.ranks.append(table.ranks[row])
        if self.compared is not None:
            self.compared.append(table.divergences[row])

    def response(self) -> Response:
        """Everything that came back: of a Score, what vLLM reports on the prompt,
        and then what was generated."""
        name, cached = self.request.request_id, self.cached_tokens
        if not self.rows and self.report_from is None:
            tokens = tuple(self.tokens)
            return Response(request_id=name, token_ids=tokens, cached_tokens=cached)
        tokens = tuple([table.ids[start - 1] for table, start in self.rows])
        logprobs = [table.logprobs[start - 1] for table, start in self.rows]
        ranks = self.ranks or []
        top_ids, top_logprobs = [], []
        for table, start in self.rows if self.top and not self.streams else ():
            listed = slice(start, start + self.top)
            top_ids.append(tuple(table.ids[listed]))
            top_logprobs.append(tuple(table.logprobs[listed]))
        compared = self.compared or []
        if self.report_from is not None:
            assert isinstance(self.request, Score)
            tokens = self.request.continuation_ids
            reported_ids, reported_logprobs, reported_ranks = (
                part[self.report_from :].tolist() for part in self.report[:3]
            )
            # own and likeliest tokens; beyond these, divergences
            width = self.report.logprob_token_ids.shape[1]
            logprobs = [row[0] for row in reported_logprobs] + logprobs
            ranks = reported_ranks + ranks
            top_ids = [tuple(row[1:]) for row in reported_ids] + top_ids
            top_logprobs = [
                tuple(row[1:width]) for row in reported_logprobs
            ] + top_logprobs
            if reported_logprobs and len(reported_logprobs[0]) > width:
                compared = [row[width:] for row in reported_logprobs]
        return Response(
            request_id=name,
            token_ids=tokens,
            logprobs=tuple(logprobs),
            ranks=tuple(ranks),
            top_ids=tuple(top_ids),
            top_logprobs=tuple(top_logprobs),
            cached_tokens=cached,
            divergences=divergences_of(compared),
        )


class Batch:
    """The requests in the engine core, the scores that share them, and the responses
    that are ready."""

    def __init__(
        self,
        started: Started,
        vocabulary: int,
        eos_ids: list[int],
        counters: Counters,
        numbers: Iterator[int],
    ) -> None:
        """`numbers` gives each request a new id for the core. With steps scheduled
        ahead, the last step of a run is still in progress when the next run begins."""
        self._core: Any = started.llm.engine_core  # vLLM's EngineCoreClient
        self._started = started
        # else, a Score is computed by forced decoding
        self._by_prompt = started.scoring == "prompt_logprobs"
        self._vocabulary = vocabulary
        self._eos_ids = eos_ids
        self._counters = counters
        self._numbers = numbers
        self._core_ids: dict[str, str] = {}  # of the requests in flight
        self._shared = SharedScores()
        # the requests in the engine core, by the core's id
        self.in_flight: dict[str, InFlight] = {}
        self.ready: deque[Response] = deque()
        self.was_emptied = False  # the last step finished every request that was left

    def submit(self, given: Sequence[Request | Cancel]) -> None:
        """Cancel, refuse, or put into the engine core."""
        cancelled: list[str] = []
        accepted: list[Request] = []
        for request in given:
            if isinstance(request, Cancel):
                core_id = self._core_ids.pop(request.request_id, None)
                if core_id is not None:
                    cancelled.append(core_id)
                    pending = self.in_flight.pop(core_id)
                    # else it waited for its first step
                    if pending.cached_tokens is not None:
                        self._count(pending)
            elif (reason := self._refusal(request)) is None:
                accepted.append(request)
            else:
                self.ready.append(refuse(request, reason))
        if cancelled:
            self._core.abort_requests(cancelled)
        # A score by prompt log-probabilities is there to check the others: it shares
        # nothing.
        admitted = accepted if self._by_prompt else self._shared.admit(accepted)
        # All are made first: vLLM's code and ours in turn would push each other out of
        # the processor's caches.
        now = time.time()
        for made in [self._made(request, now) for request in admitted]:
            self._core.add_request(made)

    def receive(self, outputs: Sequence[Any]) -> None:
        """Take the EngineCoreOutputs of one step."""
        for output in outputs:
            pending = self.in_flight.get(output.request_id)
            # cancelled while this step was under way, or of an earlier run
            if pending is None:
                continue
            # a preempted request begins again, but its first time counts
            if pending.cached_tokens is None:
                stats = output.prefill_stats
                pending.cached_tokens = 0 if stats is None else stats.num_cached_tokens
                pending.report = output.new_prompt_logprobs_tensors
            if output.new_logprobs is None:
                pending.tokens.extend(output.new_token_ids)
            elif output.new_token_ids:
                pending.append(*output.new_logprobs)
            if output.finish_reason is not None:
                del self.in_flight[output.request_id]
                del self._core_ids[pending.request.request_id]
                self._count(pending)
                response = pending.response().or_error(self._vocabulary)
                self.ready.extend(self._shared.answer(response))
        self.was_emptied = not self.in_flight

    def _refusal(self, request: Request) -> str | None:
        """Why the engine cannot answer a request; None if it can."""
        positions = self._started.positions
        reason = refusal(request, self._started.max_model_len, self._vocabulary)
        if reason is not None:
            return reason
        if isinstance(request, Generate) and request.top_logprobs > MAX_TOP_LOGPROBS:
            return (
                f"top_logprobs is {request.top_logprobs}, more than {MAX_TOP_LOGPROBS}"
            )
        if self._by_prompt and isinstance(request, Score):
            # Its prompt holds the continuation, and one token is generated after it.
            length = len(request.prompt_ids) + len(request.continuation_ids)
            if length >= positions:
                return (
                    f"its {length} tokens fill the model's {positions} positions, and"
                    " scoring by prompt log-probabilities needs one more"
                )
        return None

    def _made(self, request: Request, now: float) -> EngineCoreRequest:
        """A request as vLLM's engine core gets it; from now on it is in flight."""
        dialect = self._started.dialect
        if isinstance(request, Generate):
            parameters = dialect.generate(request, self._eos_ids, self._vocabulary)
            rows = [] if request.stream is None else request.stream
            prompt = list(request.prompt_ids)
            pending = InFlight(
                request,
                len(prompt),
                min(request.top_logprobs, self._vocabulary),
                rows=rows,
            )
        elif self._by_prompt and request.reference is None:
            # One token is generated, which is not read. Row i of the report is of the
            # prompt's token i + 1.
            parameters = prompt_score()
            prompt = [*request.prompt_ids, *request.continuation_ids]
            pending = InFlight(
                request, len(prompt), report_from=len(request.prompt_ids) - 1
            )
        elif dialect.in_prompt(request):
            # The last token alone is generated. Of a score with a reference, the report
            # has a row for that token too.
            parameters = dialect.score(request, in_prompt=True)
            prompt = [*request.prompt_ids, *request.continuation_ids[:-1]]
            pending = InFlight(request, len(prompt), report_from=0, ranks=[])
        else:
            parameters = dialect.score(request)
            prompt = list(request.prompt_ids)
            pending = InFlight(
                request,
                len(prompt),
                ranks=[],
                compared=[] if request.reference else None,
            )
        core_id = str(next(self._numbers))
        self.in_flight[core_id] = pending
        self._core_ids[request.request_id] = core_id
        return EngineCoreRequest(
            request_id=core_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=parameters,
            pooling_params=None,
            arrival_time=now,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )

    def _count(self, ended: InFlight) -> None:
        generated = ended.rows or ended.tokens
        self._counters.end_request(
            ended.prompt_tokens, ended.cached_tokens or 0, len(generated)
        )
