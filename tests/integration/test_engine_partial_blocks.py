"""Sharing partly filled cache blocks: what is saved, and that no answer changes when
blocks are scarce and reused."""

import functools
import random
from collections import Counter

import pytest

from evaluator.engine.base import Cancel, Generate
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import (
    Waiting,
    answers,
    assert_alike,
    needs_vllm,
    oracle_of,
    random_tokens,
)
from tests.support.models import save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = needs_vllm

CONFIG = EngineConfig(max_model_len=256, max_num_seqs=12)
BLOCK = 32


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("partial")
    return tuple(
        save_tiny_model(folder / str(seed), "qwen3", seed, eos_ids=(0,))
        for seed in (0, 1)
    )


@pytest.fixture(scope="module")
def engine():
    """With 16 blocks of 32 tokens: 12 requests of up to 150 tokens do not fit, and
    some are preempted."""
    import vllm

    made = VLLMEngine(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            vllm,
            "EngineArgs",
            functools.partial(vllm.EngineArgs, num_gpu_blocks_override=16),
        )
        yield made
    made.close()


class Cutting(Waiting):
    """Gives requests in order, and cancels every third streamed one at its second
    token."""

    def __init__(self, requests):
        super().__init__(requests)
        self._pieces, self.cancelled = Counter(), set()

    def receive(self, name, token):
        self._pieces[name] += 1
        if self._pieces[name] == 2 and int(name.split("/")[1]) % 3 == 0:
            self.cancelled.add(name)
            self.requests.insert(0, Cancel(request_id=name))


def family(draw, number):
    prompt = random_tokens(draw, draw.choice([3, 15, 17, 31, 32, 33, 50, 64, 90, 127]))
    made = [generation(f"{number}/0", prompt, 24, top_logprobs=3, stream=[])]
    for index in range(1, 9):
        if index % 2:
            options = random_tokens(draw, draw.randrange(1, 6))
            made.append(scoring(f"{number}/{index}", prompt, options))
        else:
            branch = prompt[: draw.randrange(1, len(prompt) + 1)]
            branch += random_tokens(draw, draw.randrange(0, 40))
            name = f"{number}/{index}"
            made.append(generation(name, branch, 20, top_logprobs=3, stream=[]))
    return made


def test_scarce_blocks_equal_oracle(engine, checkpoints):
    """Answers are the oracles while blocks are scarce reused and swapped."""
    # the same prompts again: nothing of the old weights may remain
    for checkpoint in (*checkpoints, checkpoints[0]):
        draw = random.Random(4)
        requests = [request for number in range(14) for request in family(draw, number)]
        engine.load(checkpoint)
        oracle = oracle_of(checkpoint, CONFIG)
        source = Cutting(requests)
        finals = answers(engine, source)
        assert (
            set(finals)
            == {request.request_id for request in requests} - source.cancelled
        )
        assert source.cancelled
        assert_alike(
            finals,
            {
                each.request_id: oracle.answer(each)
                for each in requests
                if each.request_id in finals
            },
        )


@pytest.mark.parametrize("length", [5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 90])
def test_shared_prompt_is_computed_once(engine, checkpoints, length):
    """A shared prompt is computed once and then its last token only."""
    engine.load(checkpoints[0])
    prompt = tuple(range(8, 8 + 60)) + tuple(range(8, 8 + 60))
    drawn = {"max_tokens": 4, "temperature": 1.0, "top_p": 0.9}
    asked = [
        Generate(request_id=str(n), prompt_ids=prompt[:length], seed=n, **drawn)
        for n in range(6)
    ]
    assert len(answers(engine, asked)) == 6
    # the tokens before the last one that no whole block holds
    partial = (length - 1) % BLOCK
    again = 0 if partial >= 8 else partial  # too few to wait a step for
    assert engine.stats().prompt_tokens == length + 5 * (1 + again)


def test_branch_computes_one_token(engine, checkpoints):
    engine.load(checkpoints[0])
    prompt = tuple(range(8, 50))
    whole = answers(engine, [generation("g", prompt, 12)])["g"]
    before = engine.stats().prompt_tokens
    branch = [generation("b", (*prompt, *whole.token_ids[:6], 9), 3)]
    found = answers(engine, branch)
    assert engine.stats().prompt_tokens == before + 1
    assert_alike(found, answers(oracle_of(checkpoints[0], CONFIG), branch))
