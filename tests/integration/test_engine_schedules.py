"""However vLLM's scheduler cuts and orders the work, the GPU's runner answers alike:
prompts in chunks, requests that are preempted, a prefix cache that is cold, warm or
off. Steps are scheduled ahead throughout.
"""

import contextlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from evaluator.engine.base import Generate
from evaluator.engine.config import EngineConfig
from evaluator.engine.vllm.engine import VLLMEngine
from tests.support.engines import (
    Waiting,
    answers,
    assert_alike,
    only_v2,
    oracle_of,
    random_tokens,
)
from tests.support.models import save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = only_v2

VOCABULARY = 384
BLOCK = 32
CONFIG = EngineConfig(max_model_len=256, max_num_seqs=8)
CHUNKS = {"max_num_batched_tokens": 48}
SMALL_CACHE = {"num_gpu_blocks_override": 10}  # as many as the longest request needs


@dataclass
class Schedule:
    # request -> rows, for each step that computes
    steps: list[Mapping[str, int]] = field(default_factory=list)
    preempted: set[str] = field(default_factory=set)

    @property
    def rows(self) -> int:
        return sum(sum(step.values()) for step in self.steps)


def scheduler_of(engine):
    return engine._started.llm.engine_core.engine_core.scheduler


@contextlib.contextmanager
def watch(engine):
    scheduler, seen = scheduler_of(engine), Schedule()
    own = scheduler.schedule

    def schedule(*arguments, **named):
        output = own(*arguments, **named)
        if output.num_scheduled_tokens:
            seen.steps.append(dict(output.num_scheduled_tokens))
        seen.preempted |= output.preempted_req_ids or set()
        return output

    scheduler.schedule = schedule
    yield seen
    scheduler.schedule = own


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("schedules") / "model", "qwen3", 0, eos_ids=(0,)
    )


@contextlib.contextmanager
def serving(checkpoint, **arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("V2_ARGS", json.dumps(arguments))
        engine = VLLMEngine(CONFIG)
        # else wrong scores would be replaced
        assert engine.load(checkpoint).scoring == "forced"
        assert (engine._started.dialect.v2, engine._started.dialect.one_step) == (
            True,
            True,
        )
        assert type(scheduler_of(engine)).__name__ == "AsyncScheduler"
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def oracle(checkpoint):
    return oracle_of(checkpoint, CONFIG)


def tokens(draw, count):
    return random_tokens(draw, count, VOCABULARY)


def mixed():
    """Greedy, streamed, sampled and scored requests, several to a prompt, in random
    order."""
    draw = random.Random(0)
    asked = []
    drawn = {"max_tokens": 6, "temperature": 1.0, "top_p": 0.9}
    for number, length in enumerate((20, 65, 90, 120)):
        prompt, option = tokens(draw, length), tokens(draw, 40)
        asked += [
            generation(
                f"g{number}",
                prompt,
                10,
                top_logprobs=3,
                stream=[] if number % 2 else None,
            ),
            *(
                Generate(
                    request_id=f"n{number}.{n}", prompt_ids=prompt, seed=n, **drawn
                )
                for n in range(2)
            ),
            *(scoring(f"s{number}.{n}", prompt, option[n:]) for n in (0, 3, 37)),
        ]
    draw.shuffle(asked)
    return asked


@pytest.fixture(scope="module")
def expected(checkpoint, oracle):
    """Greedy answers and scores are transformers'; samples are those of a plain
    engine. Its cache changes nothing."""
    with serving(checkpoint) as engine:
        found, warm = answers(engine, mixed()), answers(engine, mixed())
    check(warm, found)
    assert all(
        (warm[name].cached_tokens or 0) >= 3 * BLOCK for name in warm if name[1] == "3"
    )
    theirs = {
        each.request_id: oracle.answer(each)
        for each in mixed()
        if not each.request_id.startswith("n")
    }
    check({name: found[name] for name in theirs}, theirs)
    return found


def check(found, expected):
    assert_alike(found, expected)
    assert {name: each.ranks for name, each in found.items()} == {
        name: each.ranks for name, each in expected.items()
    }


def test_prompts_in_chunks(checkpoint, expected):
    with serving(checkpoint, **CHUNKS) as engine, watch(engine) as seen:
        check(answers(engine, mixed()), expected)
    assert max(sum(step.values()) for step in seen.steps) <= 48
    assert any(sum(name in step for step in seen.steps) > 2 for name in seen.steps[0])


@pytest.mark.parametrize(
    "arguments", [SMALL_CACHE, SMALL_CACHE | CHUNKS], ids=["whole", "in chunks"]
)
def test_preempted_requests_equal_oracle(checkpoint, oracle, arguments):
    """Each begins in one block and grows into a third. Scores come in between, and
    are computed again too."""
    draw = random.Random(3)
    growing = [generation(f"g{n}", tokens(draw, 28 + n), 40) for n in range(6)]
    scores = [scoring(f"s{n}", tokens(draw, 40), tokens(draw, 30)) for n in range(3)]
    asked = [
        each for pair in zip(growing, scores, strict=False) for each in pair
    ] + growing[3:]
    with serving(checkpoint, **arguments) as engine, watch(engine) as seen:
        check(
            answers(engine, asked),
            {each.request_id: oracle.answer(each) for each in asked},
        )
    assert seen.preempted


def test_without_a_prefix_cache(checkpoint, expected):
    with serving(checkpoint, enable_prefix_caching=False) as engine:
        found = answers(engine, mixed())
    check(found, expected)
    assert {each.cached_tokens for each in found.values()} == {0}


@pytest.fixture(scope="module")
def plain(checkpoint):
    """The engine of the tests from here on: a process holds one at a time."""
    with serving(checkpoint) as engine:
        yield engine


def options(draw, prompt):
    beginning = tokens(draw, 2)
    return [scoring(n, prompt, (*beginning, *tokens(draw, n))) for n in (1, 2, 4, 5)]


@pytest.mark.parametrize("rest", [1, 2, 7, BLOCK - 1, BLOCK])
@pytest.mark.parametrize(
    "asked_before", [True, False], ids=["finished", "in the step before"]
)
def test_options_take_one_step(plain, oracle, rest, asked_before):
    """Nothing of the context is computed twice, wherever its last block ends."""
    draw = random.Random(2 * rest + asked_before)
    context = tokens(draw, 2 * BLOCK + rest)
    greedy = generation("greedy", context, 1 if asked_before else 6)
    asked = options(draw, context)
    if asked_before:
        answers(plain, [greedy])
    with watch(plain) as seen:
        found = (
            answers(plain, asked)
            if asked_before
            else after_one_step(plain, greedy, asked)
        )
    found.pop("greedy", None)
    check(found, {each.request_id: oracle.answer(each) for each in asked})
    own = sum(len(each.continuation_ids) for each in asked)
    if asked_before:
        assert len(seen.steps) <= 2
        assert seen.rows == own
    else:
        assert seen.rows == len(context) + 5 + own  # the greedy answer's own rows


def after_one_step(engine, first, then):
    """`then` begin while `first`, whose prompt has been computed, goes on."""
    waiting = [*then]

    class Source(Waiting):
        def receive(self, name, token):
            self.requests, waiting[:] = [*self.requests, *waiting], []

    return answers(engine, Source([replace(first, stream=[])]))


def test_scores_read_no_cached_continuation(plain, oracle):
    """Everything in the cache but the context is overwritten when the scores are
    admitted."""
    draw = random.Random(5)
    context, beginning = tokens(draw, BLOCK + 9), tokens(draw, 2 * BLOCK)
    asked = [scoring(n, context, (*beginning, *tokens(draw, 3))) for n in range(4)]
    answers(plain, asked)  # now whole blocks of context and continuation are cached
    manager = scheduler_of(plain).kv_cache_manager
    (caches,) = plain._started.llm.collective_rpc(
        lambda worker: worker.model_runner.kv_caches
    )
    own, used = manager.get_computed_blocks, []

    def overwriting(request, *limit):
        found = own(request, *limit)
        used.append(found[1])
        keep = {block.block_id for block in found[0].blocks[0]}
        for cache in caches:
            cache[[n for n in range(cache.shape[0]) if n not in keep]] = 100.0
        return found

    for request in asked:  # one at a time: nobody else's rows are overwritten
        manager.get_computed_blocks = overwriting
        found = answers(plain, [request])
        manager.get_computed_blocks = own
        check(found, {request.request_id: oracle.answer(request)})
    assert used == [BLOCK + 8] * len(asked)
    assert scheduler_of(plain).kv_cache_manager.get_computed_blocks is own
    # what is overwritten answers nobody
    plain._started.llm.engine_core.reset_prefix_cache()
