"""Keeping the last token of a scored context out of the prefix cache, on either model runner.

Forced decoding takes one step for each token of a continuation. One step is enough if the continuation, except for its
last token, is part of the prompt: the cache provides the context, and one row for each token of the continuation is
computed. The row of the context's last token predicts the first of them, so vLLM must compute that row. It would take
it from the cache where the hit reaches further: options that begin alike fill a cache block of their own.

vLLM's scheduler is the same for both runners.
"""

from __future__ import annotations

from typing import Any

from evaluator.engine.vllm.extra_args import SCORED_FROM


def keep_last_context_token(scheduler: Any) -> bool:
    """Make the prefix cache of a vLLM scheduler end before the rows that a score needs.

    Returns False, and changes nothing, where cached blocks cannot be cut short: those of a sliding window end where the
    hit does, and so do caches of several kinds.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        return False
    manager = scheduler.kv_cache_manager
    block_size: int = scheduler.block_size
    lookup = manager.get_computed_blocks

    def get_computed_blocks(request: Any, *limit: Any) -> Any:  # vLLM 0.33 has a limit of its own as well
        blocks, tokens, *rest = lookup(request, *limit)
        most = cacheable_tokens(request)
        if tokens > most:
            keep = most // block_size
            blocks = manager.create_kv_cache_blocks(tuple(group[:keep] for group in blocks.blocks))
            tokens = keep * block_size
        return (blocks, tokens, *rest)

    manager.get_computed_blocks = get_computed_blocks
    return True


def cacheable_tokens(request: Any) -> int:
    """How many tokens of a vLLM Request the cache may provide: the token before the first wanted row is computed."""
    arguments = request.sampling_params.extra_args or {}
    most: int = arguments.get(SCORED_FROM, request.num_tokens) - 1
    return most
