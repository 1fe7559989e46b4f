"""Scores on vLLM's V1 model runner: read off the rows of a prompt that holds context
and continuation.

vLLM has such prompt log-probabilities, but computes the whole prompt for them,
request by request. Here the context comes from the prefix cache (prompt_scores.py).
The wanted rows of all requests of a step go through the output head together. If a
score has a reference, whole distributions are stored or compared here.

Replaces `GPUModelRunner._get_prompt_logprobs_dict`, and calls it for other requests.
Reads the runner's `num_prompt_logprobs`, `requests` (`sampling_params`,
`prompt_token_ids`, `num_computed_tokens`), `query_start_loc`,
`input_batch.req_id_to_index` and `model.compute_logits`. Makes `LogprobsTensors`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.base import Reference
from evaluator.engine.vllm.prompt_scores import (
    FORCED,
    REFERENCE,
    SCORED_FROM,
    joined,
    report,
    rows_of_table,
)
from evaluator.engine.vllm.v1.sampler import Order, sample

# The runner's own method: a step's hidden states and scheduled tokens -> each request's
# log-probabilities
PromptLogprobs = Callable[
    [torch.Tensor, Mapping[str, int]], dict[str, LogprobsTensors | None]
]

# through the output head at a time: a row of logits is as long as the vocabulary
_ROWS = 128


def scores_of_prompts(
    runner: Any,
    of_whole_prompts: PromptLogprobs,
    hidden_TH: torch.Tensor,
    scheduled: Mapping[str, int],
) -> dict[str, LogprobsTensors | None]:
    """The reports on the prompts that this step computed:
    `GPUModelRunner._get_prompt_logprobs_dict`, which is `of_whole_prompts` and still
    answers the requests that want every row of theirs.

    `hidden_TH` are the step's hidden states. Row i of a request's tables is of the
    continuation's token i: its id and the likeliest one, their log-probabilities, and
    its rank. If a score has a reference, distributions are stored or compared here,
    before the rows are dropped. Its report also has a row for the last token, which is
    generated too.
    """
    # Of each score: the rows of this step that predict tokens of its continuation, and
    # these tokens.
    plain: dict[str, tuple[range, list[int]]] = {}
    referring: dict[str, tuple[range, list[int]]] = {}
    for name in [name for name in runner.num_prompt_logprobs if name in scheduled]:
        request = runner.requests[name]
        orders = request.sampling_params.extra_args or {}
        if SCORED_FROM not in orders:
            continue
        del runner.num_prompt_logprobs[name]
        tokens = list(request.prompt_token_ids[orders[SCORED_FROM] :])
        if REFERENCE in orders:
            tokens.append(orders[FORCED][0])
        first = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
        first += orders[SCORED_FROM] - 1 - request.num_computed_tokens
        (referring if REFERENCE in orders else plain)[name] = (
            range(first, first + len(tokens)),
            tokens,
        )
    reports: dict[str, LogprobsTensors | None] = {}
    if plain:
        rows, targets = _concatenated(plain.values())
        parts = [
            _tables(
                runner.model.compute_logits(hidden_TH[rows[start : start + _ROWS]]),
                targets[start : start + _ROWS],
            )
            for start in range(0, len(rows), _ROWS)
        ]
        tables, start = joined(parts), 0
        for name, (_, tokens) in plain.items():
            reports[name] = rows_of_table(tables, start, len(tokens))
            start += len(tokens)
    # up to _ROWS rows of several requests, computed together
    groups: list[dict[str, tuple[range, list[int]]]] = []
    for name, wanted in referring.items():
        if (
            not groups
            or sum(len(tokens) for _, tokens in groups[-1].values()) + len(wanted[1])
            > _ROWS
        ):
            groups.append({})
        groups[-1][name] = wanted
    for group in groups:
        rows, targets = _concatenated(group.values())
        raw_RV = runner.model.compute_logits(hidden_TH[rows])
        tables, start = _tables(raw_RV, targets), 0
        for name, (_, tokens) in group.items():
            reference = Reference(
                **runner.requests[name].sampling_params.extra_args[REFERENCE]
            )
            own = rows_of_table(tables, start, len(tokens))
            reports[name] = report(
                own, raw_RV[start : start + len(tokens)], tokens, reference
            )
            start += len(tokens)
    return of_whole_prompts(hidden_TH, scheduled) | reports


def _concatenated(
    wanted: Iterable[tuple[range, list[int]]],
) -> tuple[list[int], list[int]]:
    """All rows and all tokens, in order."""
    ranges, tokens = zip(*wanted, strict=True)
    return [*chain.from_iterable(ranges)], [*chain.from_iterable(tokens)]


def _tables(raw_RV: torch.Tensor, tokens: Sequence[int]) -> LogprobsTensors:
    """Each token's log-probability and rank, and the likeliest token of its row."""
    tables = sample(
        raw_RV.float(), [Order(forced=[token], top=1) for token in tokens], {}
    )[1]
    assert tables is not None
    return tables
