"""However vLLM's scheduler cuts and orders the work, answers are transformers': with
few cache blocks, which are reused and preempted; prompts in chunks; a prefix cache that
is cold, warm or off. On V2, steps are scheduled ahead throughout.
"""

import contextlib
import random
from dataclasses import dataclass, field

import pytest

from evaluator.engine.base import Cancel, Reference
from evaluator.engine.config import EngineConfig
from tests.support.engines import (
    Waiting,
    answers,
    assert_all_right,
    assert_right,
    both_runners,
    random_tokens,
    runs_v2,
    serving,
)
from tests.support.models import load_model, save_tiny_model
from tests.support.requests import generation, scoring

pytestmark = both_runners
only_v2 = pytest.mark.v2

BLOCK = 32
CONFIG = EngineConfig(max_model_len=256, max_num_seqs=8)
CHUNKS = CONFIG.model_copy(update={"max_num_batched_tokens": 48})
SMALL_CACHE = {"num_gpu_blocks_override": 10}  # as many as the longest request needs
UNCACHED = {"enable_prefix_caching": False}


@dataclass
class Schedule:
    # request -> rows, for each step that computes
    steps: list[dict[str, int]] = field(default_factory=list)
    preempted: set[str] = field(default_factory=set)


def scheduler_of(engine):
    return engine._started.llm.engine_core.engine_core.scheduler


@contextlib.contextmanager
def watch(engine):
    scheduler, seen = scheduler_of(engine), Schedule()
    schedule = scheduler.schedule

    def watched(*arguments, **named):
        output = schedule(*arguments, **named)
        if output.num_scheduled_tokens:
            seen.steps.append(dict(output.num_scheduled_tokens))
        seen.preempted |= output.preempted_req_ids or set()
        return output

    scheduler.schedule = watched
    yield seen
    scheduler.schedule = schedule


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("schedules")
    return [save_tiny_model(folder / str(seed), "qwen3", seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def models(checkpoints):
    return [load_model(checkpoint) for checkpoint in checkpoints]


def tokens(draw, count):
    return random_tokens(draw, count, 384)


def mixed():
    """Greedy, streamed and scored requests, several to a prompt, and growing ones, in
    random order."""
    draw = random.Random(0)
    asked = [generation(f"grows{n}", tokens(draw, 28 + n), 40) for n in range(6)]
    for number, length in enumerate((20, 65, 90, 120)):
        prompt, option = tokens(draw, length), tokens(draw, 40)
        stream = [] if number % 2 else None
        asked.append(
            generation(f"g{number}", prompt, 10, top_logprobs=3, stream=stream)
        )
        asked.append(generation(f"b{number}", prompt[:17] + option[:9], 10))
        asked += [scoring(f"s{number}.{n}", prompt, option[n:]) for n in (0, 3, 37)]
    draw.shuffle(asked)
    return asked


def referring(folder, base, *, keep):
    """Scores whose distributions are kept, or compared with those that are."""
    draw = random.Random(2)
    for number in range(2):
        reference = Reference(path=str(folder / str(number)), keep=keep, base=str(base))
        prompt, option = tokens(draw, 90), tokens(draw, 70)
        yield scoring(f"r{number}", prompt, option, reference=reference)


@pytest.mark.parametrize(
    ("config", "arguments"),
    [
        pytest.param(CONFIG, SMALL_CACHE, id="few blocks"),
        pytest.param(CONFIG, UNCACHED, id="uncached"),
        pytest.param(CHUNKS, {}, id="chunks", marks=only_v2),
        pytest.param(CHUNKS, SMALL_CACHE, id="few blocks, chunks", marks=only_v2),
    ],
)
def test_schedules_change_no_answer(checkpoints, models, config, arguments, tmp_path):
    with serving(checkpoints[0], config, **arguments) as engine, watch(engine) as seen:
        for number, place in enumerate((0, 0, 1, 0)):
            # of the old weights nothing may remain
            engine.load(checkpoints[place])
            asked = [*mixed(), *referring(tmp_path, checkpoints[0], keep=number == 0)]
            found = assert_all_right(engine, models[place], asked)
            for request in asked[-2:] if number else ():
                for each in found[request.request_id].divergences:
                    assert (each.kld < 1e-6) == (place == 0)
            # V1 shares blocks of requests that are running, also without a cache
            if arguments == UNCACHED and runs_v2():
                assert {each.cached_tokens for each in found.values()} == {0}
    assert bool(seen.preempted) == (arguments == SMALL_CACHE)
    if config is CHUNKS:
        assert max(sum(step.values()) for step in seen.steps) <= 48
        assert any(
            sum(name in step for step in seen.steps) > 2 for name in seen.steps[0]
        )


@pytest.fixture(scope="module")
def plain(checkpoints):
    """The engine of the tests from here on: a process holds one at a time."""
    with serving(checkpoints[0], CONFIG) as engine:
        assert engine._started.dialect.v2 == runs_v2()
        yield engine


@only_v2
@pytest.mark.parametrize("rest", [1, 7, BLOCK - 1, BLOCK])
@pytest.mark.parametrize("asked_before", [True, False])
def test_options_take_one_step(plain, models, rest, asked_before):
    """Nothing of the context is computed twice, wherever its last block ends, also
    where it was computed in the step before."""
    draw = random.Random(2 * rest + asked_before)
    context, beginning = tokens(draw, 2 * BLOCK + rest), tokens(draw, 2)
    asked = [scoring(n, context, beginning + tokens(draw, n)) for n in (1, 2, 4, 5)]
    rows = sum(len(request.continuation_ids) for request in asked)
    if asked_before:
        answers(plain, [generation("greedy", context, 1)])
        with watch(plain) as seen:
            assert_all_right(plain, models[0], asked)
        assert len(seen.steps) <= 2
    else:
        source = After(generation("greedy", context, 6, stream=[]), asked)
        with watch(plain) as seen:
            found = answers(plain, source)
        for request in asked:
            assert_right(models[0], request, found[request.request_id])
        rows += len(context) + 5  # the greedy answer's own
    assert sum(sum(step.values()) for step in seen.steps) == rows


class After(Waiting):
    """Requests that begin while the first, whose prompt has been computed, goes on."""

    def __init__(self, first, following):
        super().__init__([first])
        self._following = following

    def receive(self, name, token):
        self.requests += self._following
        self._following = []


class Replacing(Waiting):
    """At the first token of a stream, some requests are cancelled."""

    def __init__(self, requests, cancels):
        super().__init__(requests)
        self._cancels = cancels

    def receive(self, name, token):
        self.requests[:0] = self._cancels
        self._cancels = []


def test_cancelled_requests_leave_no_row_free(plain):
    """Those that follow take their rows in the next step."""
    draw = random.Random(3)
    names = ["stays", *map(str, range(40))]
    asked = [generation(name, tokens(draw, 20), 12, stream=[]) for name in names]
    cancels = [Cancel(request_id=str(number)) for number in range(15)]
    with watch(plain) as seen:
        found = answers(plain, Replacing(asked, cancels))
    assert set(found) == {"stays", *map(str, range(15, 40))}
    assert {len(step) for step in seen.steps[:12]} == {8}


@only_v2
def test_scores_read_no_cached_continuation(plain, models):
    """Everything in the cache but the context is overwritten when the scores are
    admitted."""
    draw = random.Random(5)
    context, beginning = tokens(draw, BLOCK + 9), tokens(draw, 2 * BLOCK)
    asked = [scoring(n, context, beginning + tokens(draw, 3)) for n in range(4)]
    answers(plain, asked)  # now whole blocks of context and continuation are cached
    manager = scheduler_of(plain).kv_cache_manager
    (caches,) = plain._started.llm.collective_rpc(
        lambda worker: worker.model_runner.kv_caches
    )
    lookup, used = manager.get_computed_blocks, []

    def overwriting(request, *limit):
        found = lookup(request, *limit)
        used.append(found[1])
        keep = {block.block_id for block in found[0].blocks[0]}
        for cache in caches:
            cache[[n for n in range(cache.shape[0]) if n not in keep]] = 100.0
        return found

    for request in asked:  # one at a time: nobody else's rows are overwritten
        manager.get_computed_blocks = overwriting
        found = answers(plain, [request])
        manager.get_computed_blocks = lookup
        assert_right(models[0], request, found[request.request_id])
    assert used == [BLOCK + 8] * len(asked)
    # what is overwritten answers nobody
    plain._started.llm.engine_core.reset_prefix_cache()
