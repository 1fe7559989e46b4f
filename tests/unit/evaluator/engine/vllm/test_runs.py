"""`VLLMEngine.run` against a core without a model that schedules steps ahead, as vLLM does on a GPU: when a run ends,
a step that computed its last requests once more is still under way, and its outputs arrive during the next run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from evaluator.checkpoints.blueprint import Blueprint
from evaluator.engine.base import FixedSource, Generate, Response
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import Started
from tests.support.engines import needs_vllm

pytestmark = needs_vllm

STALE = 9  # the token that a step under way generates for a request that has ended
ASKED = [Generate(request_id=str(n), prompt_ids=(n + 1,), max_tokens=2 + n, temperature=1.0) for n in range(4)]


class LateCore:
    """Generates a request's first prompt token until it has enough, and then STALE, one step too late."""

    def __init__(self) -> None:
        self.ids: list[str] = []  # of all requests, in the order of their arrival
        self.aborted: list[str] = []
        self._left: dict[str, tuple[int, int]] = {}  # id -> (token, how many are still to come)
        self._under_way: list[str] = []

    def add_request(self, request) -> None:
        self.ids.append(request.request_id)
        self._left[request.request_id] = (request.prompt_token_ids[0], request.sampling_params.max_tokens)

    def abort_requests(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        self._under_way += [each for each in request_ids if self._left.pop(each, None)]

    def get_output(self) -> SimpleNamespace:
        outputs = [self._output(each, STALE, last=True) for each in self._under_way]
        self._under_way = []
        for request_id, (token, left) in list(self._left.items()):
            outputs.append(self._output(request_id, token, last=left == 1))
            self._left[request_id] = (token, left - 1)
            if left == 1:
                del self._left[request_id]
                self._under_way.append(request_id)
        return SimpleNamespace(outputs=outputs)

    @staticmethod
    def _output(request_id: str, token: int, *, last: bool) -> SimpleNamespace:
        return SimpleNamespace(
            request_id=request_id,
            new_token_ids=[token],
            new_logprobs=None,
            new_prompt_logprobs_tensors=None,
            prefill_stats=None,
            finish_reason="length" if last else None,
        )


@pytest.fixture
def core() -> LateCore:
    return LateCore()


@pytest.fixture
def engine(core: LateCore) -> Iterator[VLLMEngine]:
    from evaluator.engine.vllm.sampling import Dialect

    engine = VLLMEngine(EngineConfig())
    llm = SimpleNamespace(engine_core=core)
    engine._started = Started(
        llm=llm, dialect=Dialect(v2=True), max_model_len=64, max_num_seqs=2, dtype="bfloat16", scoring="forced"
    )
    engine._blueprint = Blueprint(
        config={}, tensors={}, files=(), dtype="bfloat16", bytes=0, vocabulary=64, longest=None
    )
    yield engine
    engine._started = None


def tokens(responses: Iterator[Response]) -> dict[str, tuple[int, ...]]:
    return {each.request_id: each.token_ids for each in responses}


def test_the_same_requests_asked_again_do_not_get_what_is_left_of_their_first_time(engine, core):
    expected = {each.request_id: each.prompt_ids * each.max_tokens for each in ASKED}
    assert tokens(engine.run(FixedSource(ASKED))) == expected
    assert tokens(engine.run(FixedSource(ASKED))) == expected
    assert len(set(core.ids)) == len(core.ids) == 2 * len(ASKED)


def test_a_run_that_is_abandoned_leaves_nothing_for_the_next(engine, core):
    run = engine.run(FixedSource(ASKED))
    next(run)
    run.close()
    assert core.aborted
    expected = {each.request_id: each.prompt_ids * each.max_tokens for each in ASKED}
    assert tokens(engine.run(FixedSource(ASKED))) == expected
    assert len(set(core.ids)) == len(core.ids)


def test_a_run_searches_for_dead_cycles_rarely_and_leaves_that_as_it_was(engine):
    before = gc.get_threshold()
    run = engine.run(FixedSource(ASKED))
    next(run)
    assert gc.get_threshold()[0] >= 50_000
    run.close()
    assert gc.get_threshold() == before
