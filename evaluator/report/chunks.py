"""Packed chunks of the item view by element id: in memory as long as they are few, in a temporary file beyond."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator, Mapping

_HELD_BYTES = 8 * 2**20


class Chunks(Mapping[str, str]):
    """ASCII texts, each kept under the id that `add` gives it. The file goes when the object does."""

    def __init__(self, held_bytes: int = _HELD_BYTES) -> None:
        self._file = tempfile.SpooledTemporaryFile(held_bytes, prefix="resurface-chunks-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._places: dict[str, tuple[int, int]] = {}  # where it begins, and how long it is
        self._end = 0

    def add(self, text: str) -> str:
        """Keep a text; returns its id."""
        name = f"chunk-{len(self._places)}"
        self._file.seek(self._end)
        self._file.write(text.encode("ascii"))
        self._places[name] = (self._end, len(text))
        self._end += len(text)
        return name

    def size(self, name: str) -> int:
        """Its length in bytes."""
        return self._places[name][1]

    def __getitem__(self, name: str) -> str:
        start, length = self._places[name]
        self._file.seek(start)
        return self._file.read(length).decode("ascii")

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
