"""Blocks of running requests, with vLLM's own scheduler parts."""

import random
from types import SimpleNamespace

import torch

from evaluator.engine.vllm.v2.partial_blocks import share_partial_blocks

SIZE = 4


class Steps:
    """A cache manager of vLLM beneath a scheduler that caches full blocks when their
    tokens come. `plain`: every call goes to the manager's own method."""

    def __init__(self, *, plain):
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
        )

        spec = FullAttentionSpec(
            block_size=SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        config = KVCacheConfig(
            num_blocks=64,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self.manager = KVCacheManager(config, 64, SIZE, SIZE)
        self.calls, own = 0, self.manager.allocate_slots

        def counted(*arguments, **named):
            self.calls += 1
            return own(*arguments, **named)

        self.manager.allocate_slots = counted
        scheduler = (
            SimpleNamespace() if plain else AsyncScheduler.__new__(AsyncScheduler)
        )
        scheduler.kv_cache_manager, scheduler.block_size = self.manager, SIZE
        share_partial_blocks(scheduler)

    def begin(self, name, tokens):
        from vllm import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.request import Request

        init_none_hash(sha256)
        hasher = get_request_block_hasher(SIZE, sha256)
        request = Request(
            name, tokens, SamplingParams(max_tokens=40), None, block_hasher=hasher
        )
        blocks, cached, *_ = self.manager.get_computed_blocks(request)
        new = self.manager.allocate_slots(
            request,
            len(tokens) - cached,
            num_new_computed_tokens=cached,
            new_computed_blocks=blocks,
        )
        request.num_computed_tokens = len(tokens)
        return request, cached, self.ids(new)

    def step(self, request, token):
        """A token comes, and the next one is computed."""
        request.append_output_token_ids(token)
        self.manager.cache_blocks(request, request.num_computed_tokens)
        new = self.manager.allocate_slots(request, 1, num_lookahead_tokens=0)
        request.num_computed_tokens += 1
        return self.ids(new)

    @staticmethod
    def ids(blocks):
        return [block.block_id for block in blocks.blocks[0]] if blocks.blocks else []


def test_running_requests_with_room_need_no_call():
    """The blocks of each step, and what later requests find in the cache, are those of
    vLLM's own way."""
    draw = random.Random(0)
    shared = [draw.randrange(9) for _ in range(11)]
    both = [Steps(plain=True), Steps(plain=False)]
    prompts = [[*shared[: draw.randrange(1, 12)], n] for n in range(6)]
    drawn = [[draw.randrange(9) for _ in range(17)] for _ in prompts]
    told = []
    for side in both:
        rows = []
        begun = [side.begin(str(n), prompt) for n, prompt in enumerate(prompts)]
        rows += [each[1:] for each in begun]
        for position in range(17):
            for (request, *_), tokens in zip(begun, drawn, strict=True):
                rows.append(side.step(request, tokens[position]))
        again = [
            side.begin(f"again {n}", prompt + tokens[:13])
            for n, (prompt, tokens) in enumerate(zip(prompts, drawn, strict=True))
        ]
        told.append(rows + [each[1:] for each in again])
    assert told[0] == told[1]
    plain, quick = both
    assert plain.calls == 6 * (1 + 17 + 1)
    assert quick.calls < plain.calls / 2
