"""Scores with a reference on vLLM's V2 model runner (GPUs): whole distributions are kept or compared in the worker.

As on the V1 runner (one_step.py), context and continuation but for its last token are the prompt of such a request, and
`sampling_params.extra_args` say where the continuation begins. The V2 runner computes a prompt in chunks; the hidden
states of the continuation's rows are kept until the last one is there, and go through the output head together.
The prefix cache answers nothing of such a prompt. Written from vLLM 0.32's source; **not yet tested on a GPU**.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors

from evaluator.engine.base import Reference
from evaluator.engine.vllm.one_step import REFERENCE, SCORED_FROM, report
from evaluator.engine.vllm.sampler import FORCED

Logits = Callable[[torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class _Pending:
    reference: Reference
    context: int  # tokens of the prompt before the continuation
    last: int  # the continuation's last token, which is not in the prompt
    chunks: list[torch.Tensor] = field(default_factory=list)  # hidden states of the continuation's rows so far


class ReferringWorker:
    """Stands before a runner's `prompt_logprobs_worker`, which still answers every other request."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._pending: dict[str, _Pending] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def add_request(self, req_id: str, req_idx: int, sampling_params: Any) -> None:
        self._own.add_request(req_id, req_idx, sampling_params)
        arguments = sampling_params.extra_args or {}
        if REFERENCE in arguments:
            self._own.uses_prompt_logprobs[req_idx] = False  # or it would send every row through the output head
            self._pending[req_id] = _Pending(
                Reference(**arguments[REFERENCE]), arguments[SCORED_FROM], arguments[FORCED][0]
            )

    def remove_request(self, req_id: str) -> None:
        """A request that is preempted is removed too, and added again when it begins anew."""
        self._own.remove_request(req_id)
        self._pending.pop(req_id, None)

    def compute_prompt_logprobs(
        self,
        logits_fn: Logits,
        hidden_states: torch.Tensor,
        input_batch: Any,
        all_token_ids: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        prompt_lens: np.ndarray[Any, Any],
    ) -> dict[str, LogprobsTensors]:
        """vLLM's own, and the reports of the scores with a reference whose prompts this step has completed."""
        found: dict[str, LogprobsTensors] = self._own.compute_prompt_logprobs(
            logits_fn, hidden_states, input_batch, all_token_ids, num_computed_tokens, prompt_lens
        )
        done = {}
        for row, name in enumerate(input_batch.req_ids):
            pending = self._pending.get(name)
            if pending is None:
                continue
            prompt = int(prompt_lens[input_batch.idx_mapping_np[row]])
            start = int(input_batch.num_computed_prefill_tokens_np[row])
            end = start + int(input_batch.num_scheduled_tokens[row])
            first = max(start, pending.context - 1)  # that row predicts the continuation's first token
            if first < end:
                offset = int(input_batch.query_start_loc_np[row]) - start
                # The next step overwrites these rows.
                pending.chunks.append(hidden_states[offset + first : offset + end].clone())
            if end >= prompt:
                tokens = all_token_ids[input_batch.idx_mapping_np[row], pending.context : prompt].tolist()
                tokens.append(pending.last)
                raw_TV = logits_fn(torch.cat(pending.chunks))
                done[name] = report(raw_TV, tokens, [(len(tokens), pending.reference)])[0]
                del self._pending[name]
        return found | done


def refer(runner: Any) -> bool:
    """Have a V2 runner carry out references. False: it has no place for that, as other versions of vLLM may."""
    own = getattr(runner, "prompt_logprobs_worker", None)
    if not all(hasattr(own, name) for name in ("uses_prompt_logprobs", "compute_prompt_logprobs")):
        return False
    runner.prompt_logprobs_worker = ReferringWorker(own)
    return True
