"""Scoring a whole continuation in one step of vLLM's V1 engine on a CPU.

Forced decoding takes one step for each token of a continuation. Here context and continuation but for its last token
are the prompt of the request, which generates that last token. The context comes from the prefix cache, the rest is
computed at once, and the log-probabilities of the continuation's tokens are read off the positions before them.

vLLM has such prompt log-probabilities, but computes the whole prompt for them, request by request. Two changes to the
running engine make them cheap:

- `keep_last_context_token` (scheduler): the prefix cache answers at most the context without its last token. That one
  must be computed, because it predicts the continuation's first token.
- `scores_of_prompts` (worker): in place of the runner's own method; the rows of all requests of a step go through the
  output head together, and only those that somebody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.vllm.sampler import Order, sample

SCORED_FROM = "scored_from"  # in extra_args: how many tokens of a request's prompt are the context

# The runner's own method: a step's hidden states and scheduled tokens -> each request's log-probabilities
PromptLogprobs = Callable[[torch.Tensor, Mapping[str, int]], dict[str, LogprobsTensors | None]]

_ROWS = 128  # through the output head at a time: a row of logits is as long as the vocabulary


def keep_last_context_token(scheduler: Any) -> None:
    """Make the prefix cache of a vLLM scheduler stop short of what a score needs computed."""
    manager = scheduler.kv_cache_manager
    block_size: int = scheduler.block_size
    lookup = manager.get_computed_blocks

    def get_computed_blocks(request: Any) -> Any:
        blocks, tokens, *rest = lookup(request)
        most = cacheable_tokens(request)
        if tokens > most:
            keep = most // block_size
            blocks = manager.create_kv_cache_blocks(tuple(group[:keep] for group in blocks.blocks))
            tokens = keep * block_size
        return (blocks, tokens, *rest)

    manager.get_computed_blocks = get_computed_blocks


def cacheable_tokens(request: Any) -> int:
    """How many tokens of a vLLM Request the cache may answer: the token before the first wanted row is computed."""
    arguments = request.sampling_params.extra_args or {}
    most: int = arguments.get(SCORED_FROM, request.num_tokens) - 1
    return most


def scores_of_prompts(
    runner: Any, of_whole_prompts: PromptLogprobs, hidden_TH: torch.Tensor, scheduled: Mapping[str, int]
) -> dict[str, LogprobsTensors | None]:
    """What is reported of the prompts that this step computed: `GPUModelRunner._get_prompt_logprobs_dict`, which is
    `of_whole_prompts` and still answers the requests that want every row of theirs.

    `hidden_TH` are the step's hidden states. Row i of a request's tables is of the continuation's token i: its id and
    the likeliest one, their log-probabilities, and its rank.
    """
    wanted = [
        name
        for name in runner.num_prompt_logprobs
        if name in scheduled and SCORED_FROM in (runner.requests[name].sampling_params.extra_args or {})
    ]
    places, targets = [], []
    for name in wanted:
        request = runner.requests[name]
        context = request.sampling_params.extra_args[SCORED_FROM]
        first = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
        first += context - 1 - request.num_computed_tokens
        targets.append(request.prompt_token_ids[context:])
        places.append(range(first, first + len(targets[-1])))
        del runner.num_prompt_logprobs[name]
    rows = [place for of_request in places for place in of_request]
    tokens = [token for of_request in targets for token in of_request]
    tables = list(_scored(runner, hidden_TH, rows, tokens))
    found: dict[str, LogprobsTensors | None] = of_whole_prompts(hidden_TH, scheduled)
    start = 0
    joined = [torch.cat(column) for column in zip(*tables, strict=True)]
    for name, of_request in zip(wanted, targets, strict=True):
        found[name] = LogprobsTensors(*(column[start : start + len(of_request)] for column in joined))
        start += len(of_request)
    return found


def _scored(
    runner: Any, hidden_TH: torch.Tensor, rows: list[int], tokens: list[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """The tables of some rows, some rows at a time."""
    for start in range(0, len(rows), _ROWS):
        logits_RV = runner.model.compute_logits(hidden_TH[rows[start : start + _ROWS]])
        orders = [Order.score(token) for token in tokens[start : start + _ROWS]]
        tables = sample(logits_RV.float(), orders, {})[1]
        assert tables is not None
        yield tables.logprob_token_ids, tables.logprobs, tables.selected_token_ranks
