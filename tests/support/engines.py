"""What tests of a real vLLM engine share. vLLM takes seconds to import: tests import
it when they run."""

import contextlib
import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from evaluator.engine.base import (
    Cancel,
    Engine,
    FixedSource,
    Generate,
    Request,
    RequestSource,
    Response,
    Score,
    Streamed,
)  # fmt: skip
from evaluator.engine.beam import BeamSearch
from evaluator.engine.config import EngineConfig
from evaluator.engine.torch_engine import TorchEngine
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.devices import vllm_serves_cpus

needs_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not vllm_serves_cpus(), reason="no vLLM that serves on a CPU is installed"
    ),
]
T = TypeVar("T")
# A test of what either of vLLM's model runners computes: `pytest --runner V2` runs it
# on the GPU's.
both_runners = [*needs_vllm, pytest.mark.runners]
only_v2 = [*needs_vllm, pytest.mark.v2]
TOLERANCE = 1e-4  # nats between two implementations in float32
# nats: tokens that are closer may change places between two computations in float32
ROUNDING = 2e-5


def runs_v2() -> bool:
    """Whether this process runs the V2 runner."""
    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"


def fewer(cases: Sequence[T], every: int = 4) -> list[T]:
    """All cases; on V2, whose interpreted kernels take 15 ms for a row of a step,
    every fourth or so."""
    return list(cases[::every] if runs_v2() else cases)


def random_tokens(
    draw: random.Random, count: int, vocabulary: int = 96
) -> tuple[int, ...]:
    """Tokens of a vocabulary without its first eight, which may end an answer."""
    return tuple(draw.randrange(8, vocabulary) for _ in range(count))


def oracle_of(checkpoint: Path, config: EngineConfig) -> TorchEngine:
    """The plain engine, with the checkpoint."""
    made = TorchEngine(config)
    made.load(checkpoint)
    return made


class Waiting:
    """A source of requests that wait in `requests`; more may be added while an
    engine runs."""

    def __init__(self, requests: Sequence[Request | Cancel]) -> None:
        self.requests = list(requests)
        # with how many tokens of each were received
        self._streams: dict[str, tuple[list[Streamed], int]] = {}

    def take(self, limit: int) -> Sequence[Request | Cancel]:
        """The first `limit` requests, and all cancels that come first. New tokens
        are received before."""
        self.receive_tokens()
        taken = self._taken(limit)
        for each in taken:
            if isinstance(each, Generate) and each.stream is not None:
                self._streams[each.request_id] = each.stream, 0
        return taken

    def receive_tokens(self) -> None:
        """Each new token of the streams to `receive`."""
        for name, (stream, received) in self._streams.items():
            for token in stream[received:]:
                self.receive(name, token)
            self._streams[name] = stream, len(stream)

    def _taken(self, limit: int) -> Sequence[Request | Cancel]:
        cancels = list(
            itertools.takewhile(lambda each: isinstance(each, Cancel), self.requests)
        )
        taken = self.requests[: len(cancels) + limit]
        del self.requests[: len(taken)]
        return taken

    def receive(self, name: str, answer: Response | Streamed) -> None:
        """What a subclass makes of an answer to a request with this name."""


def opened(
    token: Streamed, top: int | None = None
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """A token and the likeliest `top` ones in its place (None: all), with
    log-probabilities; its own come first."""
    table, start = token
    stop = start + (table.width - 1 if top is None else top)
    return tuple(table.ids[start - 1 : stop]), tuple(table.logprobs[start - 1 : stop])


@contextlib.contextmanager
def serving(
    checkpoint: Path, config: EngineConfig, **arguments: Any
) -> Iterator[VLLMEngine]:
    """A vLLM engine with a checkpoint. `arguments`: other fields of vLLM's
    EngineArgs."""
    import vllm

    made = vllm.EngineArgs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm, "EngineArgs", lambda **own: made(**(own | arguments)))
        engine = VLLMEngine(config)
        # wrong scores would be replaced, and every matrix was compared
        report = engine.load(checkpoint)
        assert (report.scoring, report.notes) == (config.scoring, ())
        yield engine
    engine.close()


def answers(
    engine: Engine, requests: Sequence[Request] | RequestSource
) -> dict[str, Response]:
    """The answer to each request, by its id."""
    source = FixedSource(requests) if isinstance(requests, Sequence) else requests
    return {response.request_id: response for response in engine.run(source)}


def assert_alike(
    found: Mapping[str, Response], expected: Mapping[str, Response]
) -> None:
    """The same requests have good answers, the same tokens, and log-probabilities
    that differ by rounding."""
    assert found.keys() == expected.keys()
    for name, answer in expected.items():
        assert (found[name].status, found[name].token_ids) == (
            "ok",
            answer.token_ids,
        ), (name, found[name].error)
        assert found[name].logprobs == pytest.approx(answer.logprobs, abs=TOLERANCE), (
            name
        )


def greedy_tokens(
    model: Any, prompt: tuple[int, ...], max_tokens: int
) -> tuple[int, ...]:
    """The greedy answer of a model of transformers."""
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=max_tokens, do_sample=False
    )
    return tuple(output[0, len(prompt) :].tolist())


def assert_beams_of_transformers(
    engine: Engine,
    model: Any,
    asked: Sequence[tuple[int, ...]],
    *,
    width: int,
    max_tokens: int,
    pad: int,
    among: Sequence[Request] = (),
) -> dict[str, Response]:
    """Searches together in `engine` end with transformers' beams. Returns the
    answers to the requests among them."""
    eos_ids = eos_ids_of(model)
    searches = [
        BeamSearch(
            str(number), prompt, width=width, max_tokens=max_tokens, eos_ids=eos_ids
        )
        for number, prompt in enumerate(asked)
    ]
    names, found = {request.request_id for request in among}, {}

    class Source(Waiting):
        def receive(self, name: str, answer: Response | Streamed) -> None:
            if name not in names:
                responses = [answer] if isinstance(answer, Response) else []
                self.requests += searches[int(name.split("/")[0])].advance(responses)

    source = Source(
        [*(request for search in searches for request in search.start()), *among]
    )
    for response in engine.run(source):
        found[response.request_id] = response
        source.receive(response.request_id, response)
    for prompt, search in zip(asked, searches, strict=True):
        output = model.generate(
            torch.tensor([prompt]), num_beams=width, num_return_sequences=width, length_penalty=1.0, do_sample=False,
            early_stopping=False, max_new_tokens=max_tokens, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        beams = [tuple(row[len(prompt) :].tolist()) for row in output.sequences]
        for hypothesis, beam, score in zip(
            search.hypotheses(), beams, output.sequences_scores, strict=True
        ):
            length = len(hypothesis.token_ids)
            assert hypothesis.token_ids == beam[:length]
            assert all(token == pad for token in beam[length:])
            assert hypothesis.score == pytest.approx(float(score), abs=TOLERANCE)
    return {name: response for name, response in found.items() if name in names}


def rows_of(
    model: Any, prompt: tuple[int, ...], continuation: tuple[int, ...]
) -> torch.Tensor:
    """The log-probabilities [T, V] at each token of a continuation, from one forward
    pass of transformers' `model`."""
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + continuation[:-1]])).logits[0]
    rows_TV: torch.Tensor = logits_TV[len(prompt) - 1 :].float().log_softmax(-1)
    return rows_TV


def rounded_rows(
    model: Any, prompt: tuple[int, ...], continuation: tuple[int, ...]
) -> torch.Tensor:
    """`rows_of`, from states before the output head that are rounded to bfloat16."""
    hook = model.get_output_embeddings().register_forward_pre_hook(
        lambda _, states: (states[0].bfloat16().to(states[0]),)
    )
    try:
        return rows_of(model, prompt, continuation)
    finally:
        hook.remove()


def rank_bounds(model: Any, request: Score) -> tuple[list[int], list[int]]:
    """The ranks that each token may have if transformers' `model` rounded otherwise;
    mostly both are equal."""
    rows = rows_of(model, request.prompt_ids, request.continuation_ids)
    own = rows.gather(1, torch.tensor(request.continuation_ids)[:, None])
    low, high = (rows > own + ROUNDING).sum(-1) + 1, (rows > own - ROUNDING).sum(-1)
    return low.tolist(), high.tolist()


def assert_right(
    model: Any, request: Request, answer: Response, tolerance: float = TOLERANCE
) -> None:
    """The answer to a Score, or a greedy one, is what one forward pass of
    transformers' `model` over prompt and answer gives."""
    assert answer.status == "ok", (request.request_id, answer.error)
    ids = answer.token_ids
    rows_TV = rows_of(model, request.prompt_ids, ids)
    own_T1 = rows_TV.gather(1, torch.tensor(ids)[:, None])
    assert answer.logprobs == pytest.approx(own_T1[:, 0].tolist(), abs=tolerance)
    top = 1
    if isinstance(request, Score):
        assert ids == request.continuation_ids
        lowest, highest = rank_bounds(model, request)
        for low, rank, high in zip(lowest, answer.ranks, highest, strict=True):
            assert low <= rank <= high
    else:
        assert bool((own_T1[:, 0] >= rows_TV.amax(1) - ROUNDING).all())
        ends = [token in eos_ids_of(model) for token in ids]
        assert not any(ends[:-1])
        assert ends[-1] or len(ids) == request.max_tokens
        top = 0 if request.stream is not None else request.top_logprobs
    best_TK = rows_TV.topk(top).values
    for step in range(len(ids) if top else 0):
        assert answer.top_logprobs[step] == pytest.approx(
            best_TK[step].tolist(), abs=tolerance
        )
        listed = rows_TV[step, list(answer.top_ids[step])].tolist()
        assert answer.top_logprobs[step] == pytest.approx(listed, abs=tolerance)


def eos_ids_of(model: Any) -> frozenset[int]:
    eos = model.generation_config.eos_token_id
    return frozenset(eos if isinstance(eos, list) else [eos])


def assert_all_right(
    engine: Engine, model: Any, requests: Sequence[Request]
) -> dict[str, Response]:
    """The engine's answers, each of which is right."""
    found = answers(engine, requests)
    assert found.keys() == {request.request_id for request in requests}
    for request in requests:
        assert_right(model, request, found[request.request_id])
    return found
