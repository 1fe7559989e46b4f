"""Sharing partly filled cache blocks on the V2 model runner.

Each request of a shared context would compute the tokens after the last whole block
again: 7 on average with blocks of
16. vLLM itself can take over a part of a block, and looks for such parts only in
    Mamba models. Here it gets those of
../partial_blocks.py in all models. vLLM keeps both blocks until the copy is made.

Replaces methods of a scheduler's `KVCacheManager` (`get_computed_blocks`,
`allocate_slots`, `reset_prefix_cache`, `take_kv_cache_block_copies`) and of its
`BlockPool` (`get_new_blocks`). Reads `Scheduler.block_size`,
`KVCacheManager.enable_caching`, `.block_pool`, `.create_kv_cache_blocks`,
`.empty_kv_cache_blocks`, and `req_to_blocks` of its coordinator's
manager, `BlockPool.blocks`, and `skip_reading_prefix_cache` of a `Request`."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from evaluator.engine.vllm.partial_blocks import KnownBlocks
from evaluator.engine.vllm.prompt_scores import cacheable_tokens

_RUNNING = {"num_lookahead_tokens": 0}  # what a running request's call names


def share_partial_blocks(scheduler: Any) -> None:
    """Make a vLLM scheduler take over parts of blocks. Its model must have a single
    kind of full attention."""
    manager, pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
    size: int = scheduler.block_size
    known = KnownBlocks(size)
    lookup, allocate = manager.get_computed_blocks, manager.allocate_slots
    caches_later = isinstance(scheduler, AsyncScheduler)
    take, reset, copies = (
        pool.get_new_blocks,
        manager.reset_prefix_cache,
        manager.take_kv_cache_block_copies,
    )

    def get_computed_blocks(request: Any, *limit: Any) -> Any:
        blocks, tokens, *rest = lookup(request, *limit)
        if (
            manager.enable_caching
            and not request.skip_reading_prefix_cache
            and tokens % size == 0
        ):
            most = min(
                [cacheable_tokens(request), tokens + size - 1, *filter(None, limit)]
            )
            more, block, _ = known.best(request, tokens, most)
            if block is not None:
                blocks = manager.create_kv_cache_blocks(
                    ([*blocks.blocks[0], pool.blocks[block]],)
                )
                tokens += more
        return (blocks, tokens, *rest)

    (blocks_of,) = manager.coordinator.single_type_managers

    def allocate_slots(request: Any, *arguments: Any, **named: Any) -> Any:
        # A running request needs a new block for one token of `size`. An AsyncScheduler
        # caches full blocks when their tokens come.
        if caches_later and arguments == (1,) and named == _RUNNING:
            held = blocks_of.req_to_blocks.get(request.request_id, ())
            if request.num_computed_tokens < len(held) * size:
                return manager.empty_kv_cache_blocks
        new = allocate(request, *arguments, **named)
        if new is not None and new.blocks[0]:
            added = [block.block_id for block in new.blocks[0]]
            held = blocks_of.req_to_blocks[request.request_id]
            known.remember(request, len(held) - len(added), added)
        return new

    def get_new_blocks(count: int) -> Any:
        blocks = take(count)
        for block in blocks:
            known.forget(block.block_id)
        return blocks

    def reset_prefix_cache(*arguments: Any, **named: Any) -> Any:
        known.clear()
        return reset(*arguments, **named)

    def take_kv_cache_block_copies() -> Any:
        known.end_step()
        return copies()

    manager.take_kv_cache_block_copies = take_kv_cache_block_copies
    manager.get_computed_blocks, manager.allocate_slots = (
        get_computed_blocks,
        allocate_slots,
    )
    pool.get_new_blocks, manager.reset_prefix_cache = get_new_blocks, reset_prefix_cache
