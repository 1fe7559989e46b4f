"""Forced decoding in vLLM: the engine is told which tokens to generate, and reports what the model thought of them.

A continuation is scored by decoding it after its prompt. That costs the prompt once for all continuations (it stays in
the prefix cache) and one decode step per token; the reported log-probabilities and ranks are the raw model's, taken
before anything is forced. Which mechanism forces depends on vLLM's model runner:

- V1 (CPUs): `ForcedTokens`, a logits processor that reads the ids from `SamplingParams.extra_args`;
- V2 (GPUs): vLLM's own trace replay. Written from vLLM 0.32's source; **not yet tested on a GPU**.

`Forcing` hides which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.interface import MoveDirectionality

_ARGUMENT = "forced_token_ids"
_SURE = 1.0e30  # above any logit, and finite, so that nothing downstream sees a NaN


@dataclass(frozen=True, slots=True)
class Forcing:
    """How an engine is made to generate given tokens."""

    trace_replay: bool  # True on the V2 model runner

    def engine_arguments(self) -> dict[str, Any]:
        """What vLLM's EngineArgs must carry for it."""
        if self.trace_replay:
            return {"enable_trace_replay": True}
        return {"logits_processors": [ForcedTokens], "async_scheduling": False}

    def parameters(self, token_ids: tuple[int, ...]) -> SamplingParams:
        """Sampling parameters that generate `token_ids`, each with its log-probability, its rank, and the top token."""
        forced = list(token_ids)
        how: dict[str, Any] = (
            {"trace_decode_token_ids": forced} if self.trace_replay else {"extra_args": {_ARGUMENT: forced}}
        )
        return SamplingParams(
            temperature=0.0,
            max_tokens=len(forced),
            logprobs=1,
            ignore_eos=True,
            detokenize=False,
            flat_logprobs=True,
            skip_clone=True,
            **how,
        )


class ForcedTokens(LogitsProcessor):  # type: ignore[misc]  # vllm is not followed by mypy
    """V1 runner: makes the forced token of each row the greedy choice."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        # Row of the batch -> (forced ids, the request's output ids: vLLM's own list, which grows).
        self._rows: dict[int, tuple[list[int], list[int]]] = {}
        self._device = device

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """All requests come from `Forcing.parameters`."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow the rows; the order removed, added, moved is vLLM's."""
        if batch_update is None:
            return
        rows = self._rows
        for row in batch_update.removed:
            rows.pop(row, None)
        for row, parameters, _prompt_ids, output_ids in batch_update.added:
            forced = (parameters.extra_args or {}).get(_ARGUMENT)
            if forced is None:
                rows.pop(row, None)
            else:
                rows[row] = (forced, output_ids)
        for source, target, direction in batch_update.moved:
            moved, replaced = rows.pop(source, None), rows.pop(target, None)
            if moved is not None:
                rows[target] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                rows[source] = replaced

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits` [rows, vocabulary], changed in place."""
        if self._rows:
            tokens = [forced[min(len(output), len(forced) - 1)] for forced, output in self._rows.values()]
            index = torch.tensor([list(self._rows), tokens], device=self._device)
            logits[index[0], index[1]] = _SURE
        return logits
