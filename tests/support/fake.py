"""Engines without a model.

`FakeEngine` answers each request from a script, in a scripted order, and dies on
request. `FakeLM` is a script that behaves like a language model: its next-token
distributions are a fixed pseudo-random function of the prefix. So tests can check
beams, samples and scores end to end without weights::

    lm = FakeLM(vocabulary=16, eos_ids=frozenset({0}))
    engine = FakeEngine(lm.answer, reorder_seed=3)
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from evaluator.core.errors import EngineError
from evaluator.core.records import EngineStats
from evaluator.engine.base import (
    Cancel,
    Generate,
    LoadReport,
    Request,
    RequestSource,
    Response,
    Score,
    Streamed,
    TokenTable,
)
from evaluator.engine.distributions import divergences_from, unusable


class FakeEngine:
    """Scripted answers: random order by `reorder_seed`, EngineError after
    `fail_after` responses, `room` in flight."""

    name = "fake"
    version = "1"
    dtype = "float32"

    def __init__(
        self,
        script: Callable[[Request], Response],
        *,
        reorder_seed: int | None = None,
        fail_after: int | None = None,
        room: int = 64,
    ) -> None:
        self._script = script
        self._order = None if reorder_seed is None else random.Random(reorder_seed)
        self._fail_after = fail_after
        self._room = room
        self._requests = self._responses = self._generated = self._prompt_tokens = 0
        self.loaded: list[Path] = []

    def load(self, checkpoint: Path) -> LoadReport:
        """Remember `checkpoint`; the script does not see it."""
        self.loaded.append(checkpoint)
        self._requests = self._responses = self._generated = self._prompt_tokens = 0
        return LoadReport(
            checkpoint=checkpoint, swapped=len(self.loaded) > 1, tensors=0, seconds=0.0
        )

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Answer everything that the source gives. Raises EngineError after
        `fail_after` responses."""
        waiting: dict[str, Iterator[Response | None]] = {}
        while True:
            given = source.take(self._room - len(waiting))
            for request in given:
                if isinstance(request, Cancel):
                    waiting.pop(request.request_id, None)
                else:
                    waiting[request.request_id] = self._answer(request)
            if not waiting:
                if given:  # nothing but cancels
                    continue
                return
            if self._fail_after is not None and self._responses >= self._fail_after:
                raise EngineError(
                    f"the fake engine died after {self._responses} responses, as"
                    " requested"
                )
            name = (
                next(iter(waiting))
                if self._order is None
                else self._order.choice(list(waiting))
            )
            answer = waiting.pop(name)
            answered = next(answer)
            self._responses += 1
            if answered is not None:
                yield answered
            else:
                waiting[name] = answer

    def _answer(self, request: Request) -> Iterator[Response | None]:
        """The response; before it None for every token that is streamed."""
        response = self._script(request)
        generated = len(response.token_ids)
        self._requests += 1
        self._prompt_tokens += len(request.prompt_ids)
        if isinstance(request, Generate) and request.stream is not None:
            for row in streamed_tokens(response):
                request.stream.append(row)
                yield None
            response = replace(response, top_ids=(), top_logprobs=())
        self._generated += generated
        yield response

    def confirm(self) -> None:
        """Nothing can take its place."""

    def stats(self) -> EngineStats:
        """A step is a response or a streamed token; a cancelled request counts as a
        request."""
        return EngineStats(
            requests=self._requests,
            steps=self._responses,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
        )

    def close(self) -> None:
        """Nothing to free."""


def streamed_tokens(response: Response) -> list[Streamed]:
    """The tokens of a response as an engine streams them."""
    columns = (
        response.token_ids,
        response.top_ids,
        response.logprobs,
        response.top_logprobs,
    )
    return [
        (TokenTable((token, *ids), (own, *logprobs), 1 + len(ids)), 1)
        for token, ids, own, logprobs in zip(*columns, strict=True)
    ]


class FakeLM:
    """A language model that is a pure function of (seed, prefix): logits are normal
    with deviation `sharpness`."""

    def __init__(
        self,
        *,
        vocabulary: int = 16,
        eos_ids: frozenset[int] = frozenset({0}),
        seed: int = 0,
        sharpness: float = 2.0,
    ) -> None:
        self.vocabulary = vocabulary
        self.eos_ids = eos_ids
        self._seed = seed
        self._sharpness = sharpness

    def logprobs(self, prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
        """Next-token log-probabilities after `prefix`, shape [vocabulary], nats."""
        digest = hashlib.blake2b(
            repr((self._seed, prefix)).encode(), digest_size=8
        ).digest()
        logits = (
            np.random.default_rng(int.from_bytes(digest, "little")).normal(
                size=self.vocabulary
            )
            * self._sharpness
        )
        normalised: npt.NDArray[np.float64] = logits - np.logaddexp.reduce(logits)
        return normalised

    def answer(self, request: Request) -> Response:
        """The response that an engine serving this model gives."""
        return (
            self._score(request)
            if isinstance(request, Score)
            else self._generate(request)
        )

    def _score(self, request: Score) -> Response:
        reference, prefix = request.reference, request.prompt_ids
        if reference is not None:
            reason = unusable(reference, request.continuation_ids, self.vocabulary)
            if reason is not None:
                return Response(
                    request_id=request.request_id, status="engine_error", error=reason
                )
        rows: list[npt.NDArray[np.float64]] = []
        logprobs: list[float] = []
        ranks: list[int] = []
        top: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
        for token in request.continuation_ids:
            row = self.logprobs(prefix)
            rows.append(row)
            logprobs.append(float(row[token]))
            ranks.append(1 + int((row > row[token]).sum()))
            top.append(_top(row, 1))
            prefix = (*prefix, token)
        return Response(
            request_id=request.request_id,
            token_ids=request.continuation_ids,
            logprobs=tuple(logprobs),
            ranks=tuple(ranks),
            top_ids=tuple(ids for ids, _ in top),
            top_logprobs=tuple(values for _, values in top),
            divergences=(
                ()
                if reference is None
                else divergences_from(
                    reference, np.stack(rows), request.continuation_ids
                )
            ),
        )

    def _generate(self, request: Generate) -> Response:
        draw = np.random.default_rng(request.seed)
        tokens: list[int] = []
        logprobs: list[float] = []
        top: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
        ends = self.eos_ids | {*request.stop_ids}
        while len(tokens) < request.max_tokens and not (tokens and tokens[-1] in ends):
            row = self.logprobs(request.prompt_ids + tuple(tokens))
            token = (
                int(row.argmax())
                if request.temperature == 0
                else nucleus(row, request, draw)
            )
            tokens.append(token)
            logprobs.append(float(row[token]))
            if request.top_logprobs:
                top.append(_top(row, request.top_logprobs))
        return Response(
            request_id=request.request_id,
            token_ids=tuple(tokens),
            logprobs=(
                tuple(logprobs)
                if request.temperature == 0 or request.top_logprobs
                else ()
            ),
            top_ids=tuple(ids for ids, _ in top),
            top_logprobs=tuple(values for _, values in top),
        )


def _top(
    row: npt.NDArray[np.float64], count: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    best = np.argsort(-row, kind="stable")[:count]
    return tuple(best.tolist()), tuple(row[best].tolist())


def nucleus(
    row: npt.NDArray[np.float64], request: Generate, draw: np.random.Generator
) -> int:
    order = np.argsort(-row, kind="stable")
    scaled = row[order] / request.temperature
    probabilities = np.exp(scaled - np.logaddexp.reduce(scaled))
    before = np.cumsum(probabilities) - probabilities
    kept = probabilities * (before < request.top_p)
    return int(order[draw.choice(len(order), p=kept / kept.sum())])
