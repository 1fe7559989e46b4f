"""The states from which an output head makes logits, as references keep them.

A state has thousands of numbers, a row of logits as many as the vocabulary. States in
float32 are rounded to bfloat16; 16-bit ones are kept as they are. For equal states to
be at distance 0, one head makes both rows of logits, in products of one shape. So a
checkpoint that has its base's head makes the base's logits with it, and its own again
from its rounded states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.checkpoints.heads import head_of
from evaluator.engine.tolerances import agree, precision

if TYPE_CHECKING:
    from torch import Tensor


class EngineHead:
    """The head of a loaded checkpoint, as its engine computes it."""

    def __init__(self, checkpoint: Path, compute: Callable[[Tensor], Tensor]) -> None:
        """`compute` gives the logits [T, V] of states [T, H]."""
        self.compute = compute
        self._checkpoint = checkpoint
        self._name: str | None = None
        self._is_examined = False

    def name(self, states_TH: Tensor) -> str | None:
        """The digest of the files' head, and the dtype of the logits. None if these
        files give other logits than the engine, which the first states show."""
        if not self._is_examined:
            self._is_examined = True
            head, logits_TV = head_of(self._checkpoint), self.compute(states_TH)
            dtype = str(logits_TV.dtype).removeprefix("torch.")
            allowed = precision(dtype, dtype, on_gpu=states_TH.is_cuda)
            if head is not None and agree(
                head.logits(states_TH, logits_TV.dtype), logits_TV, allowed
            ):
                self._name = f"{head.digest} {dtype}"
        return self._name


@dataclass(frozen=True, slots=True)
class States:
    """Of the rows of a score; without `rows_TH`, only their logits are at hand."""

    head: EngineHead
    rows_TH: Tensor | None = None

    def kept(self) -> Tensor | None:
        """The rows in 16 bits; None without a head that others can find in files."""
        import torch

        if self.rows_TH is None or self.head.name(self.rows_TH) is None:
            return None
        is_long = self.rows_TH.dtype == torch.float32
        return self.rows_TH.bfloat16() if is_long else self.rows_TH
