"""Forced decoding and prompt log-probabilities, the slow way to score, give the same numbers for every score.

A process holds one vLLM engine at a time, so one is closed before the other starts.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evaluator.checkpoints.blueprint import read_blueprint
from evaluator.engine.base import EngineStats, Response, Score
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, both_runners, fewer, random_tokens
from tests.support.models import save_tiny_model
from tests.support.rounding import rank_bounds

pytestmark = both_runners

BUNDLED = Path(__file__).resolve().parents[2] / "launch" / "reference_model"
CONFIG = EngineConfig(max_model_len=400, max_num_seqs=16)
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 127, 128, 129, 256, 368)  # with 32 more, 368 fill the engine's 400
TOLERANCE = 1e-3  # nats


@pytest.fixture(scope="module", params=[pytest.param("qwen3", marks=pytest.mark.long), "bundled"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "bundled":
        return BUNDLED
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny", request.param, 0)


def asked_twice(
    checkpoint: Path, config: EngineConfig, asked: list[Score]
) -> tuple[list[dict[str, Response]], EngineStats]:
    """The second time the prefix cache could answer."""
    engine = VLLMEngine(config)
    try:
        assert engine.load(checkpoint).scoring == config.scoring
        both = [answers(engine, asked) for _ in range(2)]
        return both, engine.stats()
    finally:
        engine.close()


def test_forced_scores_equal_those_by_prompt_logprobs(checkpoint: Path) -> None:
    from transformers import AutoModelForCausalLM

    draw = random.Random(1)
    vocabulary = read_blueprint(checkpoint).vocabulary

    contexts = {length: random_tokens(draw, length, vocabulary) for length in fewer(LENGTHS, 6)}
    asked = [
        Score(
            request_id=f"{length}/{count}", prompt_ids=context, continuation_ids=random_tokens(draw, count, vocabulary)
        )
        for length, context in contexts.items()
        for count in fewer((1, 2, 9, 32), 3)
    ]
    asked.append(
        Score(request_id="begins", prompt_ids=asked[-1].prompt_ids, continuation_ids=asked[-1].continuation_ids[:4])
    )
    forced, _ = asked_twice(checkpoint, CONFIG, asked)
    by_prompt, stats = asked_twice(checkpoint, CONFIG.model_copy(update={"scoring": "prompt_logprobs"}), asked)
    assert stats.cached_tokens == 0
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()
    bounds = {request.request_id: rank_bounds(model, request) for request in asked}
    assert stats.prompt_tokens == 2 * sum(len(r.prompt_ids) + len(r.continuation_ids) for r in asked)
    for ours, theirs in zip(forced, by_prompt, strict=True):
        for request in asked:
            answer, expected = ours[request.request_id], theirs[request.request_id]
            assert (answer.status, expected.status) == ("ok", "ok")
            assert answer.token_ids == expected.token_ids == request.continuation_ids
            assert answer.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
            lowest, highest = bounds[request.request_id]
            for ranks in (answer.ranks, expected.ranks):
                assert all(low <= rank <= high for low, rank, high in zip(lowest, ranks, highest, strict=True))
            assert answer.top_ids == expected.top_ids
            assert [top for (top,) in answer.top_logprobs] == pytest.approx(
                [top for (top,) in expected.top_logprobs], abs=TOLERANCE
            )


@pytest.mark.more
def test_a_score_that_fills_the_model_has_no_prompt_logprobs(tmp_path: Path) -> None:
    """vLLM wants to generate one token after the prompt, and no position is left: refused, and the engine lives."""
    checkpoint = save_tiny_model(tmp_path / "tiny", "qwen3", 0, max_position_embeddings=64)
    fits = Score(request_id="fits", prompt_ids=(9,) * 60, continuation_ids=(9, 10, 11))
    fills = Score(request_id="fills", prompt_ids=(9,) * 60, continuation_ids=(9, 10, 11, 12))
    (first, second), _ = asked_twice(
        checkpoint, CONFIG.model_copy(update={"scoring": "prompt_logprobs"}), [fits, fills]
    )
    assert {key: answer.status for key, answer in first.items()} == {"fits": "ok", "fills": "engine_error"}
    assert second["fits"].ranks == first["fits"].ranks
