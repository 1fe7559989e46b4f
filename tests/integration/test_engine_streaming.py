"""VLLMEngine on streamed and cancelled requests."""

from collections import defaultdict

import pytest

from evaluator.engine.base import Cancel, FixedSource, Generate
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import Waiting, answers, both_runners
from tests.support.models import save_tiny_model

pytestmark = both_runners


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    made = VLLMEngine(EngineConfig(max_model_len=400, max_num_seqs=8))
    made.load(save_tiny_model(tmp_path_factory.mktemp("streaming") / "one", "qwen3", 0, eos_ids=(0,)))
    yield made
    made.close()


class Noting(Waiting):
    """Notes the streamed tokens, and cancels one request when it, or any, has so many."""

    def __init__(self, requests, cancelled=None, at=0):
        super().__init__(requests)
        self.tokens, self._cancelled, self._at = defaultdict(list), cancelled, at

    def receive(self, name, token):
        self.tokens[name].append(token)
        if self._cancelled is not None and len(self.tokens[self._cancelled if self._at else name]) >= self._at:
            self.requests.append(Cancel(request_id=self._cancelled))
            self._cancelled = None


def asked(stream, count=4):
    how = {"max_tokens": 12, "top_logprobs": 3, "stream": stream}
    return [Generate(request_id=str(n), prompt_ids=tuple(range(5, 40 + n)), **how) for n in range(count)]


def test_the_pieces_of_a_streamed_answer_are_those_of_the_whole(engine):
    whole = answers(engine, asked(stream=False))
    source = Noting(asked(stream=True))
    for response in engine.run(source):
        name = response.request_id
        assert response.token_ids == whole[name].token_ids
        assert response.top_ids == whole[name].top_ids
        columns = response.token_ids, response.top_ids, response.top_logprobs, response.logprobs
        assert source.tokens.pop(name) == [(name, *row) for row in zip(*columns, strict=True)]
        del whole[name]
    assert not whole
    assert not source.tokens


def test_a_cancelled_request_ends_and_the_others_are_as_without_it(engine):
    alone = {name: r.token_ids for name, r in answers(engine, asked(stream=False)).items()}
    before = engine.stats()
    source = Noting(asked(stream=True), cancelled="2", at=3)
    finals = {name: response.token_ids for name, response in answers(engine, source).items()}
    assert finals == {name: ids for name, ids in alone.items() if name != "2"}
    assert len(source.tokens["2"]) == 3
    after = engine.stats()
    assert after.requests - before.requests == 4
    assert after.generated_tokens - before.generated_tokens == sum(map(len, finals.values())) + 3
    # One that is cancelled before its first step is not counted.
    source = Noting(asked(stream=True, count=14), cancelled="13")  # the engine computes 8 at once
    before = engine.stats()
    assert answers(engine, source).keys() == {str(number) for number in range(13)}
    after = engine.stats()
    assert after.requests - before.requests == 13
    asked_for = sum(len(request.prompt_ids) for request in asked(stream=True, count=13))
    computed = after.prompt_tokens - before.prompt_tokens
    assert computed + after.cached_tokens - before.cached_tokens == asked_for


def test_cancels_alone_neither_end_nor_hold_a_run(engine):
    requests = [Cancel(request_id="never asked"), *asked(stream=False, count=1)]
    assert [r.request_id for r in engine.run(FixedSource(requests))] == ["0"]
    source = Waiting([*(Cancel(request_id=str(n)) for n in range(40)), *asked(stream=False, count=2)])
    assert {r.request_id for r in engine.run(source)} == {"0", "1"}
