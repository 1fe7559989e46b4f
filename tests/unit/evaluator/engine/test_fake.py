from evaluator.engine.base import Cancel, Generate
from evaluator.engine.fake import FakeEngine, FakeLM
from tests.support.engines import Waiting


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
