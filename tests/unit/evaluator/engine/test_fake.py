import numpy as np

from evaluator.engine.base import Cancel, Generate, Score
from evaluator.engine.fake import FakeEngine, FakeLM
from tests.support.engines import Waiting


def test_scores_and_greedy_answers_agree_with_the_model():
    lm = FakeLM(vocabulary=10, eos_ids=frozenset(), seed=4)
    greedy = lm.answer(Generate(request_id="g", prompt_ids=(3,), max_tokens=5, top_logprobs=2))
    score = lm.answer(Score(request_id="s", prompt_ids=(3,), continuation_ids=greedy.token_ids))
    assert score.logprobs == greedy.logprobs
    assert score.ranks == (1,) * 5
    assert score.top_ids == tuple((token,) for token in greedy.token_ids)
    assert all(a > b for a, b in greedy.top_logprobs)
    second = greedy.top_ids[0][1]
    assert lm.answer(Score(request_id="s", prompt_ids=(3,), continuation_ids=(second,))).ranks == (2,)


def test_samples_follow_seed_and_nucleus():
    lm = FakeLM(vocabulary=10, eos_ids=frozenset({0}), seed=4)

    def draw(seed, top_p=0.5):
        drawn = {"temperature": 1.0, "top_p": top_p, "seed": seed}
        return lm.answer(Generate(request_id="x", prompt_ids=(3,), max_tokens=6, **drawn))

    assert draw(1) == draw(1)
    assert draw(1).logprobs == ()
    assert len({draw(seed).token_ids for seed in range(20)}) > 1
    row = np.exp(lm.logprobs((3,)))
    order = np.argsort(-row)
    nucleus = order[: 1 + int((row[order].cumsum() < 0.5).sum())]
    assert {draw(seed).token_ids[0] for seed in range(100)} == set(nucleus.tolist())
    assert all(0 not in draw(seed, 1.0).token_ids[:-1] for seed in range(20))


def test_a_streamed_answer_comes_token_by_token_and_can_be_cancelled():
    lm = FakeLM(vocabulary=10, eos_ids=frozenset(), seed=4)
    request = Generate(request_id="g", prompt_ids=(3,), max_tokens=5, top_logprobs=2, stream=True)
    streamed = []

    class Source(Waiting):
        then = ()

        def receive(self, name, token):
            streamed.append(token)
            if len(streamed) == 2:
                self.requests += self.then

    (whole,) = FakeEngine(lm.answer).run(Source([request]))
    assert whole == lm.answer(request)
    assert streamed == list(zip(["g"] * 5, whole.token_ids, whole.top_ids, whole.top_logprobs, strict=True))

    streamed.clear()
    source = Source([request])
    source.then = [Cancel(request_id="g"), Generate(request_id="h", prompt_ids=(4,), max_tokens=1)]
    assert [response.request_id for response in FakeEngine(lm.answer).run(source)] == ["h"]
    assert len(streamed) == 2
