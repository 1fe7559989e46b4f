"""Keeping the last token of a scored context out of the prefix cache, on either model runner.

Forced decoding takes one step for each token of a continuation. Here the continuation, except for its last token, is
part of the prompt, and the score takes one step. The cache provides the context. vLLM computes one row for each token
of the continuation: the row of the token before it.

The first of these rows is that of the context's last token. vLLM would take it from the cache where a hit reaches
further, because options that begin alike fill a cache block. So the hit must end before it. Both runners have the same
scheduler.
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
