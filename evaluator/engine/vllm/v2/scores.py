"""Scores on vLLM's V2 model runner: read off the rows of a prompt that holds context
and continuation.

The prefix cache provides the context (prompt_scores.py), and the runner computes one
row for each token of the continuation. Since vLLM computes a long prompt in chunks,
these rows may be in several steps.

The runner calls its `prompt_logprobs_worker` after every step; `ScoringWorker` wraps
it. If several GPUs share a model, every worker calls the output head in the same order,
as the head's all-gather requires.

Replaces `GPUModelRunner.prompt_logprobs_worker`, a `PromptLogprobsWorker`
(`add_request`, `remove_request`, `compute_prompt_logprobs`). Reads the batch's
`req_ids`, `idx_mapping_np`, `num_computed_prefill_tokens_np`, `num_scheduled_tokens`
and `query_start_loc_np`. Calls `prompt_logprob.compute_topk_scores` and
`async_tensor_h2d`; makes `LogprobsTensors`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample import prompt_logprob

from evaluator.engine.base import Reference
from evaluator.engine.states import States
from evaluator.engine.vllm import prompt_scores
from evaluator.engine.vllm.prompt_scores import (
    COMPARED,
    FORCED,
    REFERENCE,
    SCORED_FROM,
    joined,
    report,
    rows_of_table,
)

Logits = Callable[[Tensor], Tensor]

# through the output head at a time: as many as vLLM's sampler has, whose logits its
# memory profile counts
_ROWS = 256


@dataclass(slots=True)
class _Pending:
    """A score whose prompt is not complete yet."""

    context: int  # tokens of the prompt before the continuation
    reference: Reference | None = None
    compared: Sequence[int] = ()  # with a reference: the whole continuation
    # tables of the rows so far; with a reference, their hidden states
    parts: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a step that predict tokens of one continuation."""

    name: str
    slot: int  # of the request in the runner's state
    positions: range  # in the prompt
    places: range  # in the step's hidden states
    complete: bool  # the step ends the prompt


class ScoringWorker:
    """Wraps a runner's `prompt_logprobs_worker`, which still answers every other
    request."""

    def __init__(self, own: Any, runner: Any) -> None:
        self._own = own
        self._runner = runner
        self._pending: dict[str, _Pending] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def add_request(self, req_id: str, req_idx: int, sampling_params: Any) -> None:
        self._own.add_request(req_id, req_idx, sampling_params)
        orders = sampling_params.extra_args or {}
        if SCORED_FROM in orders:
            pending = self._pending[req_id] = _Pending(orders[SCORED_FROM])
            if REFERENCE in orders:
                pending.reference = Reference(**orders[REFERENCE])
                pending.compared = orders[COMPARED]

    def remove_request(self, req_id: str) -> None:
        """A request that is preempted is removed too, and added again when it starts
        over."""
        self._own.remove_request(req_id)
        self._pending.pop(req_id, None)

    def compute_prompt_logprobs(
        self,
        logits_fn: Logits,
        hidden_states: Tensor,
        input_batch: Any,
        all_token_ids: Tensor,
        num_computed_tokens: Tensor,
        prompt_lens: np.ndarray[Any, Any],
    ) -> dict[str, LogprobsTensors]:
        """vLLM's own report, and one for each score whose prompt this step has
        completed.

        Row i of a report is of the continuation's token i: its id and the likeliest
        token's, their log-probabilities, and its rank. The sampler reports a score's
        last token; a score with a reference has a row for that one too.
        """
        found: dict[str, LogprobsTensors] = self._own.compute_prompt_logprobs(
            logits_fn,
            hidden_states,
            input_batch,
            all_token_ids,
            num_computed_tokens,
            prompt_lens,
        )
        if not self._pending:
            return found
        every = [
            (each, self._pending[each.name])
            for each in self._rows(input_batch, prompt_lens)
        ]
        plain = [
            each for each, pending in every if pending.reference is None and each.places
        ]
        # one copy for all, which nobody waits for
        lists = [
            [place for each in plain for place in each.places],
            [each.slot for each in plain for _ in each.places],
            [position + 1 for each in plain for position in each.positions],
            *(pending.compared for each, pending in every if each.complete),
        ]
        places_R, slots_R, targets_R, *compared = async_tensor_h2d(
            list(chain.from_iterable(lists)), hidden_states.device, torch.int64
        ).split([len(each) for each in lists])
        compared_ids = iter(compared)
        tables, start = None, 0
        if plain:
            tokens_R = all_token_ids[slots_R, targets_R]
            tables = _tables(logits_fn, hidden_states, places_R, tokens_R)
            # one copy for all of them; the runner waits for the stream before it reads
            copied = tables.to_cpu_nonblocking()
        for each, pending in every:
            if each.complete:
                del self._pending[each.name]
                ids_T = next(compared_ids)
            if pending.reference is not None:
                if each.places:  # the next step overwrites these rows
                    pending.parts.append(
                        hidden_states[each.places.start : each.places.stop].clone()
                    )
                if each.complete:
                    rows_TH = torch.cat(pending.parts)
                    raw_RV = logits_fn(rows_TH)
                    states = States(self._runner.output_head, rows_TH)
                    own, known = _ranked(raw_RV, ids_T), pending.compared
                    found[each.name] = report(
                        own, raw_RV, known, pending.reference, states
                    )
                continue
            whole = each.complete and not pending.parts
            if each.places and tables is not None:
                rows = copied if whole else tables
                pending.parts.append(rows_of_table(rows, start, len(each.places)))
                start += len(each.places)
            if each.complete:
                parts = pending.parts
                found[each.name] = parts[0] if whole else joined(parts)
        return found

    def _rows(self, batch: Any, prompt_lens: Any) -> Iterator[_Rows]:
        """The rows of a step that belong to pending scores.

        With a reference, the prompt's last row is one of them: it predicts the token
        that is not in the prompt.
        """
        for index, name in enumerate(batch.req_ids):
            pending = self._pending.get(name)
            if pending is None:
                continue
            slot = int(batch.idx_mapping_np[index])
            prompt = int(prompt_lens[slot])
            start = int(batch.num_computed_prefill_tokens_np[index])
            end = start + int(batch.num_scheduled_tokens[index])
            # the context's last row predicts the continuation's first token
            first = max(start, pending.context - 1)
            stop = max(
                first, end if pending.reference is not None else min(end, prompt - 1)
            )
            offset = int(batch.query_start_loc_np[index]) - start
            yield _Rows(
                name,
                slot,
                range(first, stop),
                range(offset + first, offset + stop),
                end >= prompt,
            )


class ComparingSampler:
    """Wraps a runner's `sampler`: it also compares the tokens of scores that are
    read token by token."""

    def __init__(self, own: Any, runner: Any) -> None:
        self._own = own
        self._runner = runner
        # by slot, of requests with a reference; with the forced tokens
        self._compared: dict[int, tuple[Reference, list[int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        self._own.add_request(req_idx, sampling_params)
        arguments = sampling_params.extra_args or {}
        self._compared.pop(req_idx, None)  # of the request that had the slot before
        reference = prompt_scores.reference_of(arguments)
        if reference is not None:
            self._compared[req_idx] = reference, arguments.get(FORCED, [])

    def __call__(self, logits: Tensor, input_batch: Any) -> Any:
        output = self._own(logits, input_batch)
        if not self._compared:
            return output
        compared = []
        for row, slot in enumerate(input_batch.idx_mapping_np.tolist()):
            if slot not in self._compared:
                continue
            reference, forced = self._compared[slot]
            place = int(
                input_batch.seq_lens_cpu_upper_bound[row]
                - self._own.req_states.prompt_len.np[slot]
            )
            if 0 <= place < len(forced):  # below 0 within a prompt
                compared.append((row, reference, forced[place], place))
        if compared:
            output.logprobs_tensors = prompt_scores.with_divergences(
                output.logprobs_tensors, logits, compared, self._runner.output_head
            )
        return output


def _tables(
    logits_fn: Logits, hidden_TH: Tensor, places_R: Tensor, tokens_R: Tensor
) -> LogprobsTensors:
    """The tables of all these rows of a step, at least one."""
    parts = [
        _ranked(logits_fn(hidden_TH[places]), tokens)
        for places, tokens in zip(
            torch.split(places_R, _ROWS), torch.split(tokens_R, _ROWS), strict=True
        )
    ]
    return joined(parts)


def _ranked(raw_RV: Tensor, tokens_R: Tensor) -> LogprobsTensors:
    """By vLLM's own kernels, with the rank of kernels.py."""
    table: LogprobsTensors = prompt_logprob.compute_topk_scores(
        raw_RV, 1, tokens_R.to(torch.int64)
    )
    return table
