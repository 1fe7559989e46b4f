"""The registry of engines, configurations that name one, and an engine that is
scripted."""

import pytest
from pydantic import ValidationError

from evaluator.engine import ENGINES
from evaluator.engine.base import FixedSource
from evaluator.engine.config import EngineConfig, EngineKind, build_engine
from tests.support.fake import FakeEngine, FakeLM
from tests.support.registries import temporarily
from tests.support.requests import scoring


def test_registered_engine_is_known_everywhere(tmp_path):
    lm = FakeLM()
    toy = EngineKind(
        name="toy",
        help="a toy",
        build=lambda config: FakeEngine(lm.answer, room=config.max_num_seqs),
    )
    with temporarily(ENGINES, toy):
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
