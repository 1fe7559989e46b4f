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


def asked(stream, count=4):
    how = {"max_tokens": 12, "top_logprobs": 3, "stream": stream}
    return [Generate(request_id=str(n), prompt_ids=tuple(range(5, 40 + n)), **how) for n in range(count)]


def test_the_pieces_of_a_streamed_answer_are_those_of_the_whole(engine):
    whole = answers(engine, asked(stream=False))
    pieces = defaultdict(list)
    for response in engine.run(FixedSource(asked(stream=True))):
        pieces[response.request_id].append(response)
    assert set(pieces) == set(whole)
    for name, parts in pieces.items():
        *early, last = parts
        assert not any(part.final for part in early)
        assert last.final
        assert last.token_ids == whole[name].token_ids
        assert last.top_ids == whole[name].top_ids
        assert sum((part.token_ids for part in early), ()) == last.token_ids[: len(early)]
        assert sum((part.top_ids for part in early), ()) == last.top_ids[: len(early)]
        assert all(len(part.token_ids) == len(part.logprobs) == len(part.top_logprobs) == 1 for part in early)
        assert len(early) == len(last.token_ids) - 1


def test_a_cancelled_request_ends_and_the_others_are_as_without_it(engine):
    alone = {name: r.token_ids for name, r in answers(engine, asked(stream=False)).items()}
    before = engine.stats()
    source, finals, pieces = Waiting(asked(stream=True)), {}, 0
    for response in engine.run(source):
        if response.final:
            finals[response.request_id] = response.token_ids
        pieces += response.request_id == "2"
        if response.request_id == "2" and pieces == 3:
            source.requests.append(Cancel(request_id="2"))
    assert finals == {name: ids for name, ids in alone.items() if name != "2"}
    assert pieces == 3
    after = engine.stats()
    assert after.requests - before.requests == 4
    assert after.generated_tokens - before.generated_tokens == sum(map(len, finals.values())) + 3


def test_a_request_that_is_cancelled_before_its_first_step_is_not_counted(engine):
    source = Waiting(asked(stream=True, count=14))  # the engine computes 8 at once
    before = engine.stats()
    answered = set()
    for response in engine.run(source):
        if not answered:
            source.requests.append(Cancel(request_id="13"))
        answered.add(response.request_id)
    assert answered == {str(number) for number in range(13)}
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
