"""Hashes of blocks that are remembered are those that vLLM computes."""

import random
from types import SimpleNamespace

import pytest

from evaluator.engine.vllm import block_hashes

SIZE = 4


@pytest.fixture
def core():
    """Of vLLM, with its own hasher, whose calls are counted."""
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    own = get_request_block_hasher(SIZE, sha256)
    calls = []

    def counted(request):
        calls.append(request.request_id)
        return own(request)

    scheduler = SimpleNamespace(hash_block_size=SIZE)
    return SimpleNamespace(
        scheduler=scheduler, request_block_hasher=counted, own=own, calls=calls
    )


def begun(tokens, hasher):
    from vllm import SamplingParams
    from vllm.v1.request import Request

    parameters = SamplingParams(max_tokens=40)
    return Request("a request", list(tokens), parameters, None, block_hasher=hasher)


@pytest.mark.parametrize("most", [16_384, 5])
def test_hashes_are_those_of_vllm(core, monkeypatch, most):
    """Of prompts that begin alike, and as tokens come, one or several at once; also
    where some were forgotten."""
    monkeypatch.setattr(block_hashes, "_REMEMBERED", most)
    block_hashes.remember_hashes(core)
    draw = random.Random(0)
    shared = [draw.randrange(3) for _ in range(40)]
    for _ in range(200):
        tail = [draw.randrange(3) for _ in range(draw.randrange(9))]
        prompt = [*shared[: draw.randrange(1, 41)], *tail]
        both = [begun(prompt, each) for each in (core.request_block_hasher, core.own)]
        for _ in range(draw.randrange(12)):
            coming = [draw.randrange(3) for _ in range(draw.randrange(1, 7))]
            for request in both:
                request.append_output_token_ids(coming)
        assert both[0].block_hashes == both[1].block_hashes
        assert len(both[0].block_hashes) == both[0].num_tokens // SIZE


def test_known_prompt_is_hashed_once(core):
    block_hashes.remember_hashes(core)
    for _ in range(3):
        begun(range(22), core.request_block_hasher)
    assert len(core.calls) == 1
    begun(range(25), core.request_block_hasher)  # one block more
    assert len(core.calls) == 2


def test_engine_without_prefix_cache_has_no_hashes(core):
    core.request_block_hasher = None
    block_hashes.remember_hashes(core)
    assert core.request_block_hasher is None
