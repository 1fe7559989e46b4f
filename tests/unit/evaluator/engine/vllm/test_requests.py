"""`VLLMEngine.run` against a core without a model that schedules steps ahead, as vLLM
does on a GPU: when a run ends, a step that computed its last requests once more is
still under way, and its outputs arrive during the next run.
"""

import dataclasses
import gc
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluator.engine.base import NOT_NUMBERS, FixedSource
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from evaluator.engine.vllm.start import Started
from tests.support.checkpoint_files import stated
from tests.support.engines import needs_vllm
from tests.support.requests import generation, scoring

pytestmark = needs_vllm

STALE = 9  # the token that a step under way generates for a request that has ended
ASKED = [generation(n, (n + 1,), 2 + n, temperature=1.0) for n in range(4)]


class LateCore:
    """Generates a request's first prompt token until it has enough, and then STALE,
    one step too late."""

    def __init__(self):
        self.ids: list[str] = []  # of all requests, in the order of their arrival
        self.aborted: list[str] = []
        # id -> (token, how many are still to come)
        self._left: dict[str, tuple[int, int]] = {}
        self._under_way: list[str] = []

    def add_request(self, request):
        self.ids.append(request.request_id)
        self._left[request.request_id] = (
            request.prompt_token_ids[0],
            request.sampling_params.max_tokens,
        )

    def abort_requests(self, request_ids):
        self.aborted += request_ids
        self._under_way += [each for each in request_ids if self._left.pop(each, None)]

    def get_output(self):
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
    def _output(request_id, token, *, last):
        nothing = dict.fromkeys(
            ("new_logprobs", "new_prompt_logprobs_tensors", "prefill_stats")
        )
        reason = "length" if last else None
        return SimpleNamespace(
            request_id=request_id,
            new_token_ids=[token],
            finish_reason=reason,
            **nothing,
        )


@pytest.fixture
def core():
    return LateCore()


@pytest.fixture
def engine(core):
    from evaluator.engine.vllm.sampling import Dialect

    engine = VLLMEngine(EngineConfig())
    llm = SimpleNamespace(engine_core=core, collective_rpc=lambda *_, **__: [0])
    sizes = {"max_model_len": 64, "positions": 64, "max_num_seqs": 2}
    engine._started = Started(
        llm=llm, dialect=Dialect(v2=True), dtype="bfloat16", scoring="forced", **sizes
    )
    engine._served = stated(vocabulary=64)
    yield engine
    engine._started = None


def tokens(responses):
    return {each.request_id: each.token_ids for each in responses}


@pytest.mark.parametrize("abandoned", [False, True])
def test_run_gets_nothing_of_earlier_run(engine, core, abandoned):
    """A run gets nothing that is left of the one before."""
    expected = {each.request_id: each.prompt_ids * each.max_tokens for each in ASKED}
    before = gc.get_threshold()
    run = engine.run(FixedSource(ASKED))
    if abandoned:
        next(run)
        assert gc.get_threshold()[0] >= 50_000  # it searches for dead cycles rarely
        run.close()
        assert core.aborted
    else:
        assert tokens(run) == expected
    assert gc.get_threshold() == before
    assert tokens(engine.run(FixedSource(ASKED))) == expected
    assert len(set(core.ids)) == len(core.ids)


@pytest.mark.parametrize(("positions", "refused"), [(64, ["fills"]), (65, [])])
@pytest.mark.parametrize("way", ["forced", "prompt_logprobs"])
def test_prompt_scores_need_one_position_more(engine, way, positions, refused):
    """Scores that fill the engine are refused by prompts only where the model ends
    there."""
    engine._started = dataclasses.replace(
        engine._started, positions=positions, scoring=way
    )
    batch = batch_of(engine)
    for name, n in (("fits", 59), ("fills", 60), ("exceeds", 61)):
        batch.submit([scoring(name, (9,) * n, (5, 6, 7, 8))])
    errors = {each.request_id: each.error for each in batch.ready}
    assert (
        errors.pop("exceeds")
        == "61 prompt tokens and 4 more do not fit the engine's 64 (max_model_len)"
    )
    assert list(errors) == (refused if way == "prompt_logprobs" else [])
    assert all(
        "its 64 tokens fill the model's 64 positions" in error
        for error in errors.values()
    )


def batch_of(engine, **settings):
    from evaluator.engine.vllm.counters import Counters
    from evaluator.engine.vllm.requests import Batch

    return Batch(engine._started, 64, [0], Counters(), itertools.count(), **settings)


def test_stream_ends_before_nan(engine):
    from vllm.v1.outputs import LogprobsLists

    from evaluator.engine.vllm.requests import InFlight
    from evaluator.engine.vllm.step_logprobs import StepTable

    streams: list[list[Any]] = [[], []]
    batch = batch_of(engine)
    for row, stream in enumerate(streams):
        asked = generation(row, (1,), 9, top_logprobs=3, stream=stream)
        batch.in_flight[str(row)] = InFlight(asked, 1, 3, rows=stream, ranks=[])
    for second in (-1, np.nan, -1):
        values = np.array([[-1, -1, -2, -3], [second] * 4], dtype=np.float32)
        ids, ranks = np.arange(8).reshape(2, 4), np.array([1, 2])
        table = StepTable.of(LogprobsLists(ids, values, ranks))
        for row in range(2):
            output = LateCore._output(str(row), 0, last=False)
            output.new_logprobs = table.slice_request(row, 1)
            batch.receive([output])
    assert [len(each) for each in streams] == [3, 1]
    whole, broken = batch.in_flight.values()
    assert whole.response().logprobs == (-1, -1, -1)
    assert broken.response().or_error(1000).error == NOT_NUMBERS
