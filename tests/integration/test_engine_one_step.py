"""Scoring in one step on the real vLLM, against the plain torch engine: whatever the
cache holds of a continuation."""

import json
import random

import pytest

from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import answers, both_runners, fewer, oracle_of
from tests.support.engines import random_tokens as tokens
from tests.support.models import collapse, save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = both_runners

BLOCK = 32
TOLERANCE = 2e-4
CONFIG = EngineConfig(max_model_len=320, max_num_seqs=12, dtype="float32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("one_step") / "model", "qwen3", 0, eos_ids=(0,)
    )


@pytest.fixture(scope="module")
def engine(checkpoint):
    made = VLLMEngine(CONFIG)
    # else wrong scores would be replaced
    assert made.load(checkpoint).scoring == "forced"
    yield made
    made.close()


@pytest.fixture(scope="module")
def oracle(checkpoint):
    return oracle_of(checkpoint, CONFIG)


def check(engine, oracle, asked):
    found = answers(engine, asked)
    for request in asked:
        answer, expected = found[request.request_id], oracle.answer(request)
        assert answer.status == "ok"
        assert answer.token_ids == expected.token_ids == request.continuation_ids
        assert answer.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)
        assert len(answer.ranks) == len(answer.top_ids) == len(request.continuation_ids)
        margins = [
            own - top[0]
            for own, top in zip(answer.logprobs, answer.top_logprobs, strict=True)
        ]
        for margin, own, best, token, rank in zip(
            margins,
            expected.logprobs,
            expected.top_logprobs,
            request.continuation_ids,
            answer.ranks,
            strict=True,
        ):
            assert margin == pytest.approx(own - best[0], abs=2 * TOLERANCE)
            assert (rank == 1) == (margin == 0.0), token
        assert all(
            abs(a - b) <= 1 for a, b in zip(answer.ranks, expected.ranks, strict=True)
        )


@pytest.mark.parametrize(
    "length",
    fewer([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 90], 3),
)
def test_alike_continuations_fill_blocks(engine, oracle, length):
    """The cache then holds more than the context; the token before the first row is
    computed all the same."""
    draw = random.Random(length)
    prompt, beginning = tokens(draw, length), tokens(draw, 2 * BLOCK)
    endings = [tokens(draw, draw.randrange(0, 2 * BLOCK)) for _ in range(6)]
    asked = [
        scoring(f"{n}", prompt, beginning[: 2 * BLOCK - n] + ending)
        for n, ending in enumerate(endings)
    ]
    check(engine, oracle, asked)
    check(engine, oracle, asked)  # again: now every block of theirs is in the cache
    check(engine, oracle, [scoring("s", prompt + beginning, endings[0] + (9, 9))])


def test_more_rows_than_head_takes(engine, oracle):
    """More rows than go through the head at once."""
    draw = random.Random(1)
    asked = [scoring(n, tokens(draw, 3), tokens(draw, 290)) for n in range(5)]
    check(engine, oracle, asked)


def test_nan_logits_are_errors(tmp_path):
    """A model whose logits are not numbers gives errors and no ranks."""
    broken = collapse(save_tiny_model(tmp_path / "broken", "qwen3", 0, eos_ids=(0,)))
    made = VLLMEngine(CONFIG)
    made._verify = lambda *_: ()  # NaN is not equal to itself
    made.load(broken)
    asked = [
        scoring("one", (9, 10, 11), (12,)),
        scoring("many", (9, 10, 11), (12, 13, 14)),
        generation("greedy", (9, 10, 11), 4),
    ]
    found = answers(made, asked)
    made.close()
    assert found.keys() == {"one", "many", "greedy"}
    assert all(
        each.status == "engine_error" and "NaN" in (each.error or "")
        for each in found.values()
    )


def test_sliding_window_is_forced(engine, tmp_path):
    """Its cached blocks end where the hit does, and cannot be cut short."""
    windowed = save_tiny_model(tmp_path / "windowed", "mistral", 0, eos_ids=(0,))
    config = json.loads((windowed / "config.json").read_text())
    (windowed / "config.json").write_text(json.dumps(config | {"sliding_window": 64}))
    made, oracle = VLLMEngine(CONFIG), oracle_of(windowed, CONFIG)
    assert made.load(windowed).scoring == "forced"
    assert [each._started.dialect.one_step for each in (engine, made)] == [True, False]
    draw = random.Random(3)
    asked = [scoring("0", tokens(draw, 150), tokens(draw, 60))]
    check(made, oracle, asked)
    check(made, oracle, asked)
    made.close()
