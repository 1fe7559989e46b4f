"""SmolLM2 in bfloat16: not the same numbers as in float32, but near them, and the
same answer is recognised."""

import pytest

from evaluator.engine.config import EngineConfig
from tests.support.engines import answers
from tests.support.models import load_model
from tests.support.smollm2 import MARKS, MODEL, candidates, full_pass, items

pytestmark = MARKS
# Per candidate, nats: eight bits of mantissa through thirty layers. float32 keeps to
# 1e-4 a token.
NEAR = 1.0


def test_bfloat16_scores_near_float32():
    """The same candidate wins."""
    from transformers import AutoTokenizer

    from evaluator.engine.vllm.engine import VLLMEngine

    asked = candidates(AutoTokenizer.from_pretrained(MODEL))
    model = load_model(MODEL)
    exact = {request.request_id: sum(full_pass(model, request)) for request in asked}
    engine = VLLMEngine(
        EngineConfig(dtype="bfloat16", max_model_len=640, max_num_seqs=16)
    )
    try:
        engine.load(MODEL)
        rounded = {
            key: sum(answer.logprobs) for key, answer in answers(engine, asked).items()
        }
    finally:
        engine.close()
    assert rounded == pytest.approx(exact, abs=NEAR)
    assert rounded != pytest.approx(exact, abs=1e-4)  # bfloat16 it was
    for item in items():
        names = [key for key in exact if key.startswith(f"{item.item_id}/")]
        assert max(names, key=rounded.__getitem__) == max(names, key=exact.__getitem__)
