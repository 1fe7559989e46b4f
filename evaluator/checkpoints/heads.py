"""The output head of a checkpoint's files, which makes logits from the states after the
last norm.

As in vLLM's `LogitsProcessor`, the product with its bias comes first, then the soft cap,
then the scale. config.json names both (Gemma 2's `final_logit_softcapping`, Cohere's
`logit_scale`, Granite's `logits_scaling`). An architecture may do more, so whoever uses
a head compares it with an engine's logits first (`evaluator.engine.states`)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.checkpoints.checkpoint import Checkpoint
from evaluator.checkpoints.files import file_states
from evaluator.checkpoints.shapes import text_model
from evaluator.checkpoints.tensors import FLOATS, Tensor

if TYPE_CHECKING:
    import torch

_HEADS = ("lm_head.weight", "embed_out.weight")
# of tied weights
_TABLES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")
_ROWS = 8192  # of the matrix, in memory at a time


@dataclass(frozen=True)
class Head:
    weight: Tensor  # [vocabulary, width]
    bias: Tensor | None
    cap: float | None
    scale: float

    @cached_property
    def digest(self) -> str:
        """sha256 of all that it is made of, whatever its tensors' names. Raises
        InputError as `Tensor.chunks` does."""
        digest = hashlib.sha256(json.dumps([self.cap, self.scale]).encode())
        for tensor in filter(None, (self.weight, self.bias)):
            digest.update(json.dumps([tensor.dtype, list(tensor.shape)]).encode())
            for chunk in tensor.chunks():
                digest.update(chunk)
        return digest.hexdigest()

    def logits(self, states_TH: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """[T, V], computed in `dtype` on the device of the states. The matrix is read
        part by part, so no second copy of it stays in memory."""
        import torch

        states_TH = states_TH.to(dtype)
        weight_VH, parts = self.weight.stored(), []
        for first in range(0, len(weight_VH), _ROWS):
            parts.append(states_TH @ weight_VH[first : first + _ROWS].to(states_TH).T)
        logits_TV = torch.cat(parts, 1)
        if self.bias is not None:
            logits_TV += self.bias.stored().to(logits_TV)
        if self.cap is not None:
            logits_TV = torch.tanh(logits_TV / self.cap) * self.cap
        return logits_TV * self.scale


def head_of(checkpoint: Path) -> Head | None:
    """None if its files hold no head of plain numbers that this module knows. Raises
    InputError as `Checkpoint` does, OSError without a directory."""
    return _read(checkpoint, tuple(file_states(checkpoint).items()))


@lru_cache(maxsize=8)
def _read(checkpoint: Path, states: object) -> Head | None:
    """`states`: those of its files, for which the answer holds."""
    stored = Checkpoint(checkpoint)
    settings = text_model(stored.config)
    weights = _ending(stored, _HEADS)
    if settings.get("tie_word_embeddings") or not weights:
        weights = _ending(stored, _TABLES)
    if len(weights) != 1 or weights[0].shape[0] != settings.get("vocab_size"):
        return None
    name = weights[0].name.removesuffix("weight")
    head = Head(
        weight=weights[0],
        bias=stored.tensors.get(f"{name}bias"),
        cap=settings.get("final_logit_softcapping"),
        scale=(settings.get("logit_scale") or 1)
        / (settings.get("logits_scaling") or 1),
    )
    parts = filter(None, (head.weight, head.bias))
    return head if all(part.dtype in FLOATS for part in parts) else None


def _ending(checkpoint: Checkpoint, names: tuple[str, ...]) -> list[Tensor]:
    """Its tensors with such names, in whatever part of the model."""
    return [each for name, each in checkpoint.tensors.items() if name.endswith(names)]
