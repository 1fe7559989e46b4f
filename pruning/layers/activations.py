"""The inputs of one decoder layer for every calibration batch: in memory while they fit, else in one file on disk.

The file is read and written batch by batch, so that resident memory holds one batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from pruning.model.batches import Batch
from pruning.pulse import PULSE


class Activations:
    """hidden_1TH (1, tokens, width) by the number of its batch. Leaving the context frees memory and disk."""

    def __init__(
        self, batches: Sequence[Batch], width: int, dtype: torch.dtype, device: torch.device, limit: int, folder: Path
    ) -> None:
        """`limit`: bytes that may be held in memory; more goes to an unnamed file in `folder`."""
        self._shapes = [(1, sum(batch.lengths), width) for batch in batches]
        self._dtype, self._device = dtype, device
        sizes = [tokens * width * dtype.itemsize for _, tokens, width in self._shapes]
        self._offsets = [sum(sizes[:i]) for i in range(len(sizes))]
        self.bytes = sum(sizes)
        self._held: dict[int, Tensor] = {}
        self._file = tempfile.TemporaryFile(dir=folder) if self.bytes > limit else None  # noqa: SIM115
        self._sizes = sizes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.clear()
        if self._file is not None:
            self._file.close()

    def put(self, number: int, hidden_1TH: Tensor) -> None:
        """Keep a batch's inputs; those it had before are overwritten."""
        PULSE.beat()
        if self._file is None:
            self._held[number] = hidden_1TH
            return
        self._file.seek(self._offsets[number])
        self._file.write(hidden_1TH.contiguous().cpu().view(torch.uint8).numpy().data)

    def get(self, number: int) -> Tensor:
        """The inputs that were put last for a batch, on the device."""
        PULSE.beat()
        if self._file is None:
            return self._held[number]
        self._file.seek(self._offsets[number])
        buffer = bytearray(self._sizes[number])
        self._file.readinto(buffer)
        return torch.frombuffer(buffer, dtype=self._dtype).view(self._shapes[number]).to(self._device)
