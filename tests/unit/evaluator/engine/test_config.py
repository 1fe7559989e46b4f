"""The registry of engines, configurations that name one, and an engine that is
scripted."""

import pytest
from pydantic import ValidationError

from evaluator.engine.config import EngineConfig


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
