"""Scores on vLLM's V2 model runner: read off the rows of a prompt that holds context and continuation.

The prefix cache provides the context (prompt_scores.py), and the runner computes one row for each token of the
continuation. Since vLLM computes a long prompt in chunks, these rows may be in several steps.

The runner calls its `prompt_logprobs_worker` after every step; `ScoringWorker` wraps it. If several GPUs share a model,
every worker calls the output head in the same order, as the head's all-gather requires.

Replaces `GPUModelRunner.prompt_logprobs_worker`, a `PromptLogprobsWorker` (`add_request`, `remove_request`,
`compute_prompt_logprobs`). Reads the batch's `req_ids`, `idx_mapping_np`, `num_computed_prefill_tokens_np`,
`num_scheduled_tokens` and `query_start_loc_np`. Calls `prompt_logprob.compute_topk_scores`; makes `LogprobsTensors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample import prompt_logprob

from evaluator.engine.base import Reference
from evaluator.engine.vllm.prompt_scores import FORCED, REFERENCE, SCORED_FROM, reports

Logits = Callable[[torch.Tensor], torch.Tensor]

_ROWS = 256  # through the output head at a time: as many as vLLM's sampler has, whose logits its memory profile counts


@dataclass(slots=True)
class _Pending:
    """A score whose prompt is not complete yet."""

    context: int  # tokens of the prompt before the continuation
    tables: list[LogprobsTensors] = field(default_factory=list)  # of the rows so far


@dataclass(slots=True)
class _PendingReference:
    """A score with a reference whose prompt is not complete yet."""

    reference: Reference
    context: int
    last: int  # the continuation's last token, which is not in the prompt
    hidden: list[torch.Tensor] = field(default_factory=list)  # hidden states of the continuation's rows so far


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a step that predict tokens of one continuation."""

    name: str
    slot: int  # of the request in the runner's state
    first: int  # position in the prompt of the first row
    stop: int
    offset: int  # a position's row in the step's hidden states, minus the position
    complete: bool  # the step ends the prompt

    @property
    def places(self) -> range:
        return range(self.offset + self.first, self.offset + self.stop)


class ScoringWorker:
    """Wraps a runner's `prompt_logprobs_worker`, which still answers every other request."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._scores: dict[str, _Pending] = {}
        self._references: dict[str, _PendingReference] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def add_request(self, req_id: str, req_idx: int, sampling_params: Any) -> None:
        self._own.add_request(req_id, req_idx, sampling_params)
        orders = sampling_params.extra_args or {}
        if REFERENCE in orders:
            self._references[req_id] = _PendingReference(
                Reference(**orders[REFERENCE]), orders[SCORED_FROM], orders[FORCED][0]
            )
        elif SCORED_FROM in orders:
            self._scores[req_id] = _Pending(orders[SCORED_FROM])

    def remove_request(self, req_id: str) -> None:
        """A request that is preempted is removed too, and added again when it starts over."""
        self._own.remove_request(req_id)
        self._scores.pop(req_id, None)
        self._references.pop(req_id, None)

    def compute_prompt_logprobs(
        self,
        logits_fn: Logits,
        hidden_states: torch.Tensor,
        input_batch: Any,
        all_token_ids: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        prompt_lens: np.ndarray[Any, Any],
    ) -> dict[str, LogprobsTensors]:
        """vLLM's own report, and one for each score whose prompt this step has completed.

        Row i of a report is of the continuation's token i: its id and the likeliest token's, their log-probabilities,
        and its rank. The sampler reports a score's last token; a score with a reference has a row for that one too.
        """
        found: dict[str, LogprobsTensors] = self._own.compute_prompt_logprobs(
            logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens, prompt_lens
        )
        if self._scores:
            found |= self._scored(logits_fn, hidden_states, input_batch, all_token_ids, prompt_lens)
        if self._references:
            found |= self._referred(logits_fn, hidden_states, input_batch, all_token_ids, prompt_lens)
        return found

    def _scored(
        self, logits_fn: Logits, hidden_TH: torch.Tensor, batch: Any, tokens_SP: torch.Tensor, prompt_lens: Any
    ) -> Iterator[tuple[str, LogprobsTensors]]:
        contexts = {name: pending.context for name, pending in self._scores.items()}
        rows = list(_rows(contexts, batch, prompt_lens, and_last=False))
        table = _table(logits_fn, hidden_TH, rows, tokens_SP)
        start = 0
        for each in rows:
            pending = self._scores[each.name]
            if count := len(each.places):
                assert table is not None
                here = slice(start, start + count)
                pending.tables.append(LogprobsTensors(*(column[here] for column in table[:3])))
                start += count
            if each.complete:
                del self._scores[each.name]
                joined = (torch.cat(column) for column in zip(*(part[:3] for part in pending.tables), strict=True))
                yield each.name, LogprobsTensors(*joined)

    def _referred(
        self, logits_fn: Logits, hidden_TH: torch.Tensor, batch: Any, tokens_SP: torch.Tensor, prompt_lens: Any
    ) -> Iterator[tuple[str, LogprobsTensors]]:
        contexts = {name: pending.context for name, pending in self._references.items()}
        for each in _rows(contexts, batch, prompt_lens, and_last=True):
            pending = self._references[each.name]
            if each.places:  # the next step overwrites these rows
                pending.hidden.append(hidden_TH[each.places.start : each.places.stop].clone())
            if each.complete:
                del self._references[each.name]
                tokens = [*tokens_SP[each.slot, pending.context : each.stop].tolist(), pending.last]
                raw_RV = logits_fn(torch.cat(pending.hidden))
                table = _ranked(raw_RV, torch.tensor(tokens, device=raw_RV.device))
                yield each.name, reports(table, raw_RV, tokens, [(len(tokens), pending.reference)])[0]


def _rows(contexts: dict[str, int], batch: Any, prompt_lens: Any, *, and_last: bool) -> Iterator[_Rows]:
    """The rows of a step that belong to pending scores. `contexts`: how many tokens of each prompt are its context.

    `and_last`: also the prompt's last row. It predicts the continuation's last token, which is not in the prompt.
    """
    for index, name in enumerate(batch.req_ids):
        context = contexts.get(name)
        if context is None:
            continue
        slot = int(batch.idx_mapping_np[index])
        prompt = int(prompt_lens[slot])
        start = int(batch.num_computed_prefill_tokens_np[index])
        end = start + int(batch.num_scheduled_tokens[index])
        first = max(start, context - 1)  # the context's last row predicts the continuation's first token
        stop = max(first, end if and_last else min(end, prompt - 1))
        yield _Rows(name, slot, first, stop, int(batch.query_start_loc_np[index]) - start, end >= prompt)


def _table(
    logits_fn: Logits, hidden_TH: torch.Tensor, rows: Sequence[_Rows], tokens_SP: torch.Tensor
) -> LogprobsTensors | None:
    """The tables of all rows of a step, concatenated; None if there is no row."""
    places = [place for each in rows for place in each.places]
    if not places:
        return None
    slots = [each.slot for each in rows for _ in each.places]
    targets = [position + 1 for each in rows for position in range(each.first, each.stop)]
    places_R, slots_R, targets_R = torch.tensor([places, slots, targets]).to(hidden_TH.device, non_blocking=True)
    tokens_R = tokens_SP[slots_R, targets_R]
    parts = [
        _ranked(logits_fn(hidden_TH[places_R[start : start + _ROWS]]), tokens_R[start : start + _ROWS])
        for start in range(0, len(places), _ROWS)
    ]
    return LogprobsTensors(*(torch.cat(column) for column in zip(*(part[:3] for part in parts), strict=True)))


def _ranked(raw_RV: torch.Tensor, tokens_R: torch.Tensor) -> LogprobsTensors:
    """By vLLM's own kernels, with the rank of ranks.py."""
    table: LogprobsTensors = prompt_logprob.compute_topk_scores(raw_RV, 1, tokens_R.to(torch.int64))
    return table


def score_in_prompts(runner: Any) -> None:
    """Have a V2 runner report the scores of continuations in its prompts."""
    runner.prompt_logprobs_worker = ScoringWorker(runner.prompt_logprobs_worker)
