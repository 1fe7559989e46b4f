"""Scores on vLLM's V1 model runner: read off the rows of a prompt that holds context
and continuation.

vLLM has such prompt log-probabilities, but computes the whole prompt for them,
request by request. Here the context comes from the prefix cache (prompt_scores.py).
The wanted rows of all requests of a step go through the output head together. If a
score has a reference, whole distributions are stored or compared here.

Replaces `GPUModelRunner._get_prompt_logprobs_dict`, and calls it for other requests.
Reads the runner's `num_prompt_logprobs`, `requests` (`sampling_params`,
`prompt_token_ids`, `num_computed_tokens`), `query_start_loc`,
`input_batch.req_id_to_index` and `model.compute_logits`, and the `output_head` that
worker.py puts there. Makes `LogprobsTensors`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.base import Reference
from evaluator.engine.states import States
from evaluator.engine.vllm.prompt_scores import (
    COMPARED,
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
    [Tensor, Mapping[str, int]], dict[str, LogprobsTensors | None]
]

# through the output head at a time: a row of logits is as long as the vocabulary
_ROWS = 128


def scores_of_prompts(
    runner: Any,
    of_whole_prompts: PromptLogprobs,
    hidden_TH: Tensor,
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
    plain: list[_Wanted] = []
    referring: list[_Wanted] = []
    for name in [name for name in runner.num_prompt_logprobs if name in scheduled]:
        orders = runner.requests[name].sampling_params.extra_args or {}
        if SCORED_FROM in orders:
            del runner.num_prompt_logprobs[name]
            wanted = _wanted(runner, name, orders)
            (plain if wanted.reference is None else referring).append(wanted)
    reports: dict[str, LogprobsTensors | None] = {}
    rows, tokens = _concatenated(plain)
    parts = []
    for start in range(0, len(rows), _ROWS):
        part = slice(start, start + _ROWS)
        raw_RV = runner.model.compute_logits(hidden_TH[rows[part]])
        parts.append(_tables(raw_RV, tokens[part]))
    if parts:
        reports |= _cut(joined(parts), plain)
    for group in _groups(referring):
        rows, tokens = _concatenated(group)
        raw_RV = runner.model.compute_logits(hidden_TH[rows])
        tables, start = _cut(_tables(raw_RV, tokens), group), 0
        for wanted in group:
            assert wanted.reference is not None
            end = start + len(wanted.tokens)
            reports[wanted.name] = report(
                tables[wanted.name],
                raw_RV[start:end],
                wanted.tokens,
                wanted.reference,
                States(runner.output_head, hidden_TH[wanted.rows]),
            )
            start = end
    return of_whole_prompts(hidden_TH, scheduled) | reports


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The rows of this step that predict tokens of a score's continuation."""

    name: str
    rows: range
    tokens: list[int]
    reference: Reference | None


def _wanted(runner: Any, name: str, orders: Mapping[str, Any]) -> _Wanted:
    request, context = runner.requests[name], orders[SCORED_FROM]
    tokens = list(orders.get(COMPARED, request.prompt_token_ids[context:]))
    reference = Reference(**orders[REFERENCE]) if REFERENCE in orders else None
    first = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[name]])
    first += context - 1 - request.num_computed_tokens
    return _Wanted(name, range(first, first + len(tokens)), tokens, reference)


def _groups(wanted: Iterable[_Wanted]) -> Iterable[list[_Wanted]]:
    """Scores with up to _ROWS rows together, or one score."""
    groups: list[list[_Wanted]] = []
    count = _ROWS
    for score in wanted:
        count += len(score.tokens)
        if count > _ROWS:
            groups.append([])
            count = len(score.tokens)
        groups[-1].append(score)
    return groups


def _cut(
    tables: LogprobsTensors, wanted: Iterable[_Wanted]
) -> dict[str, LogprobsTensors]:
    """Each score's own rows."""
    own, start = {}, 0
    for score in wanted:
        own[score.name] = rows_of_table(tables, start, len(score.tokens))
        start += len(score.tokens)
    return own


def _concatenated(wanted: Sequence[_Wanted]) -> tuple[list[int], list[int]]:
    """All rows and all tokens, in order."""
    rows = chain.from_iterable(score.rows for score in wanted)
    tokens = chain.from_iterable(score.tokens for score in wanted)
    return list(rows), list(tokens)


def _tables(raw_RV: Tensor, tokens: Sequence[int]) -> LogprobsTensors:
    """Each token's log-probability and rank, and the likeliest token of its row."""
    tables = sample(
        raw_RV.float(), [Order(forced=[token], top=1) for token in tokens], {}
    )[1]
    assert tables is not None
    return tables
