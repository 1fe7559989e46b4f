"""The engine `endpoint`: a model behind a URL, or a GGUF file in llama.cpp's server.

Requests go out side by side, and come back in any order. A request that the server can
never answer is refused with the reason, which becomes an `excluded` record."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import psutil
from msgspec.structs import replace

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.served import (
    Abilities,
    Endpoint,
    ServedModel,
    check_file,
    read_served,
)
from evaluator.checkpoints.tokenizer import PROBE, load_tokenizer
from evaluator.core.errors import EngineError, InputError
from evaluator.core.records import EngineStats
from evaluator.engine.admission import refusal, refuse
from evaluator.engine.base import (
    UNABLE,
    Cancel,
    LoadReport,
    Request,
    RequestSource,
    Response,
    Score,
)
from evaluator.engine.config import EngineConfig
from evaluator.engine.distributions import divergences_from
from evaluator.engine.endpoint import examine
from evaluator.engine.endpoint.client import (
    PATIENCE_SECONDS,
    Client,
    Refused,
    Unreachable,
    Unusable,
)
from evaluator.engine.endpoint.dialect import Dialect, answer_to
from evaluator.engine.endpoint.llama import Llama, tokenised
from evaluator.engine.endpoint.llama_process import COMPUTED, SLOTS, LlamaProcess
from evaluator.engine.endpoint.openai import OpenAI
from evaluator.engine.endpoint.slots import Slots
from evaluator.engine.endpoint.vllm_server import VLLMServer
from evaluator.engine.processor import usable_cores

# in the order in which `auto` tries them
DIALECTS: dict[str, type[Dialect]] = {
    dialect.name: dialect for dialect in (Llama, VLLMServer, OpenAI)
}
_CHILD_SECONDS = 20.0  # of patience
_REPEATED = 0.02  # fixed prompts that are requested again, of each request
_HALF = "\N{REPLACEMENT CHARACTER}"
_NEVER = (400, 413, 422)  # statuses of a request that the server cannot answer

_Result = TypeVar("_Result")


class EndpointEngine:
    name = "endpoint"
    dtype = "as served"

    def __init__(self, config: EngineConfig) -> None:
        self.version = ""
        self._config = config
        self._loop = asyncio.new_event_loop()
        self._process: LlamaProcess | None = None
        self._client: Client | None = None
        self._stats = EngineStats()

    # ---- loading

    def load(self, checkpoint: Path) -> LoadReport:
        """Raises InputError for a directory of weights, a changed file, and another
        model than before; EngineError if no server answers."""
        started = time.monotonic()
        served = read_served(checkpoint)
        if served is None:
            raise InputError(f"{checkpoint}: engine endpoint serves no weights")
        self._end_server()
        self._stats = EngineStats()
        self._checked = 0  # confirmations
        self._draw, self._is_other = random.Random(0), False
        tokenizer = load_tokenizer(checkpoint)
        self._server = self._connect(served, Checkpoint(checkpoint), tokenizer)
        self._prompts = prompts_of(tokenizer)
        self._served = served
        # a file is known by its bytes
        self._repeats = _REPEATED if served.fingerprint else 0.0
        self.confirm()
        if served.abilities is None:
            abilities = examine.abilities_of(self._server, self._prompts)
            self._abilities = self._wait(abilities)
        else:
            self._abilities = served.abilities
        notes = [*_notes(self.version, self._abilities)]
        if served.other_tokens:
            notes.append(
                f"its own tokenizer poses the questions: {served.other_tokens}"
            )
        if isinstance(self._server, Llama):
            own = self._wait(tokenised(self._server.client, PROBE))
            if own is not None:
                notes += _other_tokens(own, tuple(tokenizer(PROBE)["input_ids"]))
        return LoadReport(
            checkpoint=checkpoint,
            swapped=False,
            tensors=0,
            seconds=time.monotonic() - started,
            scoring="forced" if served.dialect == "llama" else "prompt_logprobs",
            notes=tuple(notes),
            setup=self._setup(),
            abilities=self._abilities.model_dump(exclude_defaults=True),
        )

    def _connect(
        self, served: ServedModel, stored: Checkpoint, tokenizer: Any
    ) -> Dialect:
        """Find the server, or start one. Raises as `load`."""
        endpoint, patience, package = served.endpoint, PATIENCE_SECONDS, ""
        self._limit = min(self._config.max_model_len, stored.longest or 2**31)
        if served.gguf is not None:
            check_file(served)
            count = self._config.max_num_seqs or SLOTS
            file = Path(served.gguf)
            self._process = LlamaProcess(file, self._limit, _threads(), count)
            package = f" ({self._process.package})"
            endpoint = Endpoint(url=self._process.url, concurrency=count)
            # a child that answers nothing has ended
            patience = _CHILD_SECONDS
        assert endpoint is not None
        self._client = Client(endpoint, self._config.spending, patience=patience)
        connecting = connected(
            self._client, endpoint, served.dialect, tokenizer, stored.vocabulary
        )
        server = self._wait(connecting)
        self.version = server.described.server + package
        self._limit = min(self._limit, server.described.context or self._limit)
        self._most = self._client.most
        if server.described.slots and len(endpoint.url) == 1:
            server.slots = Slots(self._client.most)
            self._most = server.slots.most
        return server

    def _setup(self) -> dict[str, str]:
        """What the numbers depend on."""
        served, described = self._served, self._server.described
        setup = {
            "server": self.version,
            "model": described.model,
            "file_type": described.file_type or "",
            "context": str(self._limit),
        }
        if self._process is not None:
            setup["threads"] = str(_threads())
            setup["batch"] = str(COMPUTED)
            setup["slots"] = str(self._server.client.most)
            if served.parameters:
                setup["bits_per_weight"] = f"{8 * served.size / served.parameters:.3f}"
        return setup

    def confirm(self) -> None:
        """Request the answers to the fixed prompts again from each server, all of
        them or one in turn. A dead server is none of another model."""
        served, part = self._served, slice(None)
        if not served.fingerprint:
            return
        if self._checked:
            turn = self._checked % len(served.fingerprint)
            part = slice(turn, turn + 1)
        self._checked += 1
        servers = self._server.each()
        for server in servers:
            known = self._prompts[part], served.fingerprint[part]
            try:
                if self._wait(examine.is_same(server, *known)) and self._wait(
                    examine.scores_alike(server, *known, served.planted[part])
                ):
                    continue
            except Unreachable:
                if len(servers) > 1:
                    continue
                raise
            raise self._other_model()

    def _other_model(self) -> InputError:
        return InputError(
            f"endpoint of {self._server.described.model!r}: its answers are no longer"
            " those of the model that this run began with; serve that model again,"
            " or choose another --out"
        )

    async def _repeat(self) -> None:
        """Request a fixed prompt again, once: of a model that answers now and then,
        `confirm` misses most. A tie may turn an answer, but no score."""
        turn = self._draw.randrange(len(self._prompts))
        part = slice(turn, turn + 1)
        known = self._prompts[part], self._served.fingerprint[part]
        try:
            same = await examine.is_same(self._server, *known, tries=1)
            self._is_other |= not await examine.scores_alike(
                self._server, *known, self._served.planted[part]
            )
        except (Unreachable, Unusable):  # so are others
            return
        self._stats = self._stats.plus(EngineStats(repeated=1, changed=not same))

    # ---- answering

    def run(self, source: RequestSource) -> Iterator[Response]:
        """Raises EngineError if no server answers any more, InputError if another
        model does."""
        if self._client is None:
            raise EngineError("the endpoint engine has no checkpoint")
        # None: it was cancelled, or repeats a fixed prompt
        pending: dict[asyncio.Task[Any], Request | None] = {}
        try:
            while True:
                refused = []
                for request in source.take(max(0, self._most - len(pending))):
                    if isinstance(request, Cancel):
                        _cancel(pending, request)
                    elif reason := self._refusal(request):
                        refused.append(refuse(request, reason))
                    else:
                        task = self._loop.create_task(self._answer(request))
                        pending[task] = request
                        if self._draw.random() < self._repeats:
                            pending[self._loop.create_task(self._repeat())] = None
                yield from refused
                if pending:
                    yield from self._finished(pending)
                    if self._is_other:
                        raise self._other_model()
                elif not refused:
                    break
        finally:
            if not self._loop.is_closed():
                self._wait(_end(pending))

    def _finished(
        self, pending: dict[asyncio.Task[Any], Request | None]
    ) -> Iterator[Response]:
        """Wait for at least one answer; count all that are there."""
        ended, _ = self._loop.run_until_complete(
            asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        )
        for task in ended:
            request = pending.pop(task)
            if request is None:
                continue
            response = task.result()
            self._count(request, response)
            yield response

    def _refusal(self, request: Request) -> str | None:
        if isinstance(request, Score):
            if not self._abilities.scores:
                return (
                    f"the server has no usable scores: {self._abilities.why} {UNABLE}"
                )
            if request.reference is not None and not self._abilities.distributions:
                return f"the server reports no whole distributions {UNABLE}"
            if request.ranked and not self._abilities.ranks:
                return f"the server reports no usable ranks {UNABLE}"
        return refusal(request, self._limit, self._server.vocabulary)

    async def _answer(self, request: Request) -> Response:
        try:
            async with self._place(request):
                response = await self._raw(request)
        except Refused as error:
            never = f" {UNABLE}" if error.status in _NEVER else ""
            return refuse(request, f"{error}{never}")
        except Unusable as error:
            return refuse(request, str(error))
        if not self._abilities.scores:
            response = replace(response, logprobs=(), top_ids=(), top_logprobs=())
        if not self._abilities.ranks:
            response = replace(response, ranks=())
        return response.or_error(self._server.vocabulary)

    def _place(self, request: Request) -> AbstractAsyncContextManager[None]:
        """All but a beam search's answers start from a prompt that was read as a
        whole."""
        if self._server.slots is None:
            return nullcontext()
        whole = isinstance(request, Score) or request.stream is None
        return self._server.slots.hold(request.prompt_ids, whole=whole)

    async def _raw(self, request: Request) -> Response:
        if isinstance(request, Score):
            if request.reference is not None:
                return await self._compare(request)
            return await self._server.score(request)
        if request.top_logprobs > self._abilities.top:
            # a search notices that they are missing; others need none
            request = replace(request, top_logprobs=0)
        return await self._server.generate(request)

    async def _compare(self, request: Score) -> Response:
        """A score by the whole distribution at each position, which is compared with
        the base's, or kept."""
        import torch

        assert request.reference is not None
        ids = request.continuation_ids
        rows, steps, ranks = [], [], []
        for place, token in enumerate(ids):
            row = await self._server.distribution(request.prompt_ids + ids[:place])
            rows.append(row)
            steps.append((row[token], {row.index(max(row)): max(row)}))
            ranks.append(1 + sum(other > row[token] for other in row))
        compared = divergences_from(request.reference, torch.tensor(rows), ids)
        response = answer_to(request, ids, steps, ranks=ranks)
        return replace(response, divergences=compared)

    def _count(self, request: Request, response: Response) -> None:
        counted = EngineStats(requests=1)
        if response.status == "ok":
            cached = response.cached_tokens or 0
            counted = EngineStats(
                requests=1,
                steps=len(response.token_ids),
                prompt_tokens=len(request.prompt_ids) - cached,
                generated_tokens=len(response.token_ids),
                cached_tokens=cached,
                peak_memory=self._memory(),
                replaced=_HALF in self._text(response),
            )
        self._stats = self._stats.plus(counted)

    def _text(self, response: Response) -> str:
        """That an API of texts gave."""
        if self._server.token_ids:
            return ""
        return str(self._server.tokenizer.decode(response.token_ids))

    def _memory(self) -> int | None:
        if self._process is None:
            return None
        try:
            resident: int = psutil.Process(self._process.pid).memory_info().rss
        except psutil.Error:
            return None
        return resident

    def stats(self) -> EngineStats:
        return self._stats

    def close(self) -> None:
        self._end_server()
        self._loop.close()

    def _end_server(self) -> None:
        if self._client is not None:
            self._wait(self._client.close())
            self._client = None
        if self._process is not None:
            self._process.close()
            self._process = None

    def _wait(self, answer: Coroutine[Any, Any, _Result]) -> _Result:
        return self._loop.run_until_complete(answer)


async def connected(
    client: Client, endpoint: Endpoint, dialect: str, tokenizer: Any, vocabulary: int
) -> Dialect:
    """The served model of an endpoint; `vocabulary`: if it does not tell its own.
    Raises InputError for a server of another dialect."""
    names = list(DIALECTS) if dialect == "auto" else [dialect]
    for name in names:
        described = await DIALECTS[name].describe(client, endpoint.model)
        if described is not None:
            client.narrow(described.slots)
            return DIALECTS[name](client, described, tokenizer, vocabulary)
    raise InputError(
        f"endpoint {endpoint.url[0]}: is no server of the dialect {', '.join(names)}"
    )


def prompts_of(tokenizer: Any) -> list[tuple[int, ...]]:
    """The fixed prompts in token ids."""
    return [tuple(tokenizer(text)["input_ids"]) for text in examine.PROMPTS]


def _cancel(pending: dict[asyncio.Task[Any], Request | None], cancel: Cancel) -> None:
    for task, request in pending.items():
        if request is not None and request.request_id == cancel.request_id:
            task.cancel()
            pending[task] = None


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have left their connections."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _notes(server: str, abilities: Abilities) -> Iterator[str]:
    yield (
        f"computed by {server}: its distance from the base includes that of the"
        " server's own arithmetic"
    )
    if not abilities.scores:
        yield f"the server has no usable scores: {abilities.why}"
    if not abilities.seeds:
        yield "the server does not honour seeds: samples cannot be drawn again"
    if not abilities.samplers:
        yield (
            "the server ignores top_k or min_p: its own, if it has any, leave tokens"
            " out of samples, unnoticed"
        )
    if not abilities.repeats:
        yield "the server gives the same request different numbers"


def _other_tokens(own: tuple[int, ...], base: tuple[int, ...]) -> Iterator[str]:
    """A note where a server's own tokenizer differs from the base's."""
    if own == base:
        return
    what = f"{len(own)} tokens of a test text, the base's makes {len(base)}"
    if own[1:] == base or own == base[1:]:
        what = "another token before each text than the base's"
    yield (
        f"its own tokenizer makes {what}; this run sends the base's tokens, and texts"
        " that others send it may get other answers"
    )


def _threads() -> int:
    named = os.environ.get("OMP_NUM_THREADS", "")
    return int(named) if named.isdecimal() else usable_cores()
