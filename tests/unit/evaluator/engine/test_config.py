"""The registry of engines, configurations that name one, and an engine that is
scripted."""

import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from evaluator.engine import ENGINES
from evaluator.engine.base import Cancel, FixedSource
from evaluator.engine.config import EngineConfig, EngineKind, build_engine
from tests.support.engines import Waiting
from tests.support.fake import FakeEngine, FakeLM, streamed_tokens
from tests.support.requests import generation, scoring


def test_registered_engine_is_known_everywhere(tmp_path):
    lm = FakeLM()
    toy = EngineKind(
        name="toy",
        help="a toy",
        build=lambda config: FakeEngine(lm.answer, room=config.max_num_seqs),
    )
    with ENGINES.temporarily(toy):
        engine = build_engine(EngineConfig(kind="toy", max_num_seqs=3))
        engine.load(tmp_path)
        source = FixedSource([scoring("a", (1, 2), (3, 4))])
        assert [response.token_ids for response in engine.run(source)] == [(3, 4)]
    assert "toy" not in ENGINES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "vlm"}, "unknown engine 'vlm'; did you mean 'vllm'"),
        (
            {"kind": "torch", "scoring": "prompt_logprobs"},
            "'prompt_logprobs' is a way of engine vllm, not of torch",
        ),
        (
            {"compile": True, "cuda_graphs": "full"},
            "cuda_graphs: 'full': compile: true has graphs of its own",
        ),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        EngineConfig(**settings)
    assert EngineConfig(scoring="prompt_logprobs").kind == "vllm"
    assert all(
        EngineConfig(compile=True, cuda_graphs=graphs).compile
        for graphs in (True, False, None)
    )


def test_fake_engine_streams_and_cancels():
    """A streamed answer comes token by token and can be cancelled."""
    lm = FakeLM(vocabulary=10, eos_ids=frozenset(), seed=4)
    request = generation("g", (3,), 5, top_logprobs=2, stream=[])
    streamed = []

    class Source(Waiting):
        then = ()

        def receive(self, name, token):
            streamed.append(token)
            if len(streamed) == 2:
                self.requests += self.then

    (whole,) = FakeEngine(lm.answer).run(Source([request]))
    plain = lm.answer(request)
    assert whole == replace(plain, top_ids=(), top_logprobs=())  # its stream has them
    assert streamed == streamed_tokens(plain) == request.stream

    streamed.clear()
    request.stream.clear()
    source = Source([request])
    source.then = [Cancel(request_id="g"), generation("h", (4,), 1)]
    assert [response.request_id for response in FakeEngine(lm.answer).run(source)] == [
        "h"
    ]
    assert len(streamed) == 2
