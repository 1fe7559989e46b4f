"""Scores on vLLM's V1 model runner: read off the rows of a prompt that holds context and continuation.

vLLM has such prompt log-probabilities, but computes the whole prompt for them, request by request. Here
the context comes from the prefix cache (prompt_scores.py). The wanted rows of all requests of a step go through the
output head together. If a score has a reference, whole distributions are stored or compared here.

Replaces `GPUModelRunner._get_prompt_logprobs_dict`, and calls it for other requests. Reads the runner's
`num_prompt_logprobs`, `requests` (`sampling_params`, `prompt_token_ids`, `num_computed_tokens`), `query_start_loc`,
`input_batch.req_id_to_index` and `model.compute_logits`. Makes `LogprobsTensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.base import Reference
from evaluator.engine.vllm.prompt_scores import FORCED, REFERENCE, SCORED_FROM, reports
from evaluator.engine.vllm.v1.sampler import Order, sample

# The runner's own method: a step's hidden states and scheduled tokens -> each request's log-probabilities
PromptLogprobs = Callable[[torch.Tensor, Mapping[str, int]], dict[str, LogprobsTensors | None]]

_ROWS = 128  # through the output head at a time: a row of logits is as long as the vocabulary


def scores_of_prompts(
    runner: Any, of_whole_prompts: PromptLogprobs, hidden_TH: torch.Tensor, scheduled: Mapping[str, int]
) -> dict[str, LogprobsTensors | None]:
    """The reports on the prompts that this step computed: `GPUModelRunner._get_prompt_logprobs_dict`, which is
    `of_whole_prompts` and still answers the requests that want every row of theirs.

    `hidden_TH` are the step's hidden states. Row i of a request's tables is of the continuation's token i: its id and
    the likeliest one, their log-probabilities, and its rank.
    """
    wanted = [
        name
        for name in runner.num_prompt_logprobs
        if name in scheduled and SCORED_FROM in (runner.requests[name].sampling_params.extra_args or {})
    ]
    referring = [name for name in wanted if REFERENCE in runner.requests[name].sampling_params.extra_args]
    wanted = [name for name in wanted if name not in referring]
    places, targets = [], []
    for name in wanted:
        first, tokens_of_request = _row_and_tokens(runner, name)
        targets.append(tokens_of_request)
        places.append(range(first, first + len(targets[-1])))
        del runner.num_prompt_logprobs[name]
    rows = [place for of_request in places for place in of_request]
    tokens = [token for of_request in targets for token in of_request]
    tables = [
        _tables(runner.model.compute_logits(hidden_TH[rows[start : start + _ROWS]]), tokens[start : start + _ROWS])
        for start in range(0, len(rows), _ROWS)
    ]
    referred = dict(_referred(runner, hidden_TH, referring))
    found: dict[str, LogprobsTensors | None] = of_whole_prompts(hidden_TH, scheduled)
    start = 0
    joined = [torch.cat(column) for column in zip(*(table[:3] for table in tables), strict=True)]
    for name, of_request in zip(wanted, targets, strict=True):
        found[name] = LogprobsTensors(*(column[start : start + len(of_request)] for column in joined))
        start += len(of_request)
    return found | referred


def _row_and_tokens(runner: Any, name: str) -> tuple[int, list[int]]:
    """The row of this step that predicts the first token of a request's continuation, and those of its tokens that are
    in the prompt."""
    request = runner.requests[name]
    context = request.sampling_params.extra_args[SCORED_FROM]
    first = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
    return first + context - 1 - request.num_computed_tokens, request.prompt_token_ids[context:]


def _referred(runner: Any, hidden_TH: torch.Tensor, names: list[str]) -> Iterator[tuple[str, LogprobsTensors]]:
    """The reports of scores with a reference. Distributions are stored or compared here, before the rows are dropped.

    Such a report also has a row for the last token, which is generated too. If the distributions are compared, each row
    has a column for each field of a Divergence, after its two log-probabilities. The output head computes up to _ROWS
    rows of several requests together.
    """
    group: list[tuple[str, int, list[int]]] = []
    for name in names:
        first, tokens = _row_and_tokens(runner, name)
        tokens = [*tokens, runner.requests[name].sampling_params.extra_args[FORCED][0]]
        del runner.num_prompt_logprobs[name]
        if group and sum(len(each) for _, _, each in group) + len(tokens) > _ROWS:
            yield from _together(runner, hidden_TH, group)
            group = []
        group.append((name, first, tokens))
    if group:
        yield from _together(runner, hidden_TH, group)


def _together(
    runner: Any, hidden_TH: torch.Tensor, group: list[tuple[str, int, list[int]]]
) -> Iterator[tuple[str, LogprobsTensors]]:
    rows = [row for _, first, tokens in group for row in range(first, first + len(tokens))]
    tokens = [token for _, _, of_request in group for token in of_request]
    raw_RV = runner.model.compute_logits(hidden_TH[rows])
    references = [
        (len(of_request), Reference(**runner.requests[name].sampling_params.extra_args[REFERENCE]))
        for name, _, of_request in group
    ]
    made = reports(_tables(raw_RV, tokens), raw_RV, tokens, references)
    yield from zip((name for name, _, _ in group), made, strict=True)


def _tables(raw_RV: torch.Tensor, tokens: Sequence[int]) -> LogprobsTensors:
    """Each token's log-probability and rank, and the likeliest token of its row."""
    tables = sample(raw_RV.float(), [Order.score(token) for token in tokens], {})[1]
    assert tables is not None
    return tables
