"""Scores that are read off the rows of a prompt, as far as both model runners need it.

Forced decoding takes one step for each token of a continuation. Here the continuation,
except for its last token, is part of the prompt, and the score takes one step. The
cache provides the context. vLLM computes one row for each token of the continuation:
the row of the token before it.

The first of these rows belongs to the context's last token. Options that begin alike
can fill a cache block, and then a cache hit would include this token. So the hit must
end before it. Both runners have the same scheduler.

Replaces `KVCacheManager.get_computed_blocks` of a scheduler. Reads
`Scheduler.kv_cache_config`, `.kv_cache_manager` and `.block_size`,
`KVCacheManager.create_kv_cache_blocks`, `FullAttentionSpec` and `LogprobsTensors`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.base import Reference
from evaluator.engine.distributions import WIDTH, divergence_table
from evaluator.engine.states import EngineHead, States

# What `SamplingParams.extra_args` carries: orders of a request that vLLM has no field
# for.
FORCED = "forced_token_ids"  # the tokens to generate
NUCLEUS = "nucleus"  # top_p of a row that our own sampler draws
# how many tokens of the prompt are the context; the rest is a continuation
SCORED_FROM = "scored_from"
REFERENCE = "reference"  # the fields of a Score's reference
COMPARED = "compared_token_ids"  # with a reference: the whole continuation


def keep_last_context_token(scheduler: Any) -> bool:
    """Make the prefix cache of a vLLM scheduler end before the rows that a score
    needs.

    Returns False and changes nothing if a cache hit cannot be shortened. This is the
    case for a sliding window and for caches of several kinds."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1 or not isinstance(groups[0].kv_cache_spec, FullAttentionSpec):
        return False
    manager = scheduler.kv_cache_manager
    block_size: int = scheduler.block_size
    lookup = manager.get_computed_blocks

    def get_computed_blocks(request: Any) -> Any:
        blocks, tokens, boundary = lookup(request)
        most = cacheable_tokens(request)
        if tokens > most:
            keep = most // block_size
            blocks = manager.create_kv_cache_blocks(
                tuple(group[:keep] for group in blocks.blocks)
            )
            tokens = keep * block_size
        return blocks, tokens, boundary

    manager.get_computed_blocks = get_computed_blocks
    return True


def cacheable_tokens(request: Any) -> int:
    """How many tokens of a vLLM Request the cache may provide: the token before the
    first wanted row is computed."""
    most: int = (request.sampling_params.extra_args or {}).get(
        SCORED_FROM, request.num_tokens
    ) - 1
    return most


def reference_of(arguments: Mapping[str, Any]) -> Reference | None:
    """The reference of a score that is read token by token."""
    return (
        Reference(**arguments[REFERENCE])
        if REFERENCE in arguments and SCORED_FROM not in arguments
        else None
    )


def report(
    tables: LogprobsTensors,
    raw_RV: torch.Tensor,
    tokens: Sequence[int],
    reference: Reference,
    states: States,
) -> LogprobsTensors:
    """Keep or compare the distributions of a score with a reference, and return its
    report.

    `raw_RV` are the logits that predict `tokens`, made of `states`. `tables` are these tokens'
    log-probabilities and ranks. A report that compares has a further column for each
    field of a Divergence."""
    compared = divergence_table(reference, raw_RV, tokens, states)
    logprobs = tables.logprobs
    if compared is not None:
        logprobs = torch.cat((logprobs, compared.to(logprobs.device)), 1)
    return LogprobsTensors(
        tables.logprob_token_ids, logprobs, tables.selected_token_ranks
    )


def with_divergences(
    tables: LogprobsTensors,
    raw_RV: torch.Tensor,
    compared: Sequence[tuple[int, Reference, int, int]],
    head: EngineHead,
) -> LogprobsTensors:
    """The report on a step's generated tokens, with a further column for each field of
    a Divergence.

    `compared`: rows of the step, each with its reference, the token that it predicts,
    and the token's place there.
    """
    more_RD = tables.logprobs.new_zeros(len(tables.logprobs), WIDTH)
    for row, reference, token, place in compared:
        found = divergence_table(
            reference, raw_RV[row : row + 1], [token], States(head), place
        )
        assert found is not None, "only comparisons are read token by token"
        more_RD[row] = found[0].to(more_RD.device)
    return tables._replace(logprobs=torch.cat((tables.logprobs, more_RD), 1))


def rows_of_table(tables: LogprobsTensors, start: int, count: int) -> LogprobsTensors:
    """Some consecutive rows."""
    return LogprobsTensors(*(column[start : start + count] for column in tables[:3]))


def joined(parts: Sequence[LogprobsTensors]) -> LogprobsTensors:
    """The rows of several tables (at least one), one after the other."""
    return LogprobsTensors(
        *(
            torch.cat(column)
            for column in zip(*(part[:3] for part in parts), strict=True)
        )
    )
