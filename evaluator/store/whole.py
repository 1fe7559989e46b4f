"""Remembers which parts of records were whole at the last check, by the digests of their bytes.

    RUN/records/.whole    SHA-256 of `SOUGHT`, the columns that the check requires; then SHA-256 of each whole part

Reading a part in full costs 100 times as much as its digest. A part is read again only if its digest is new, or if
`SOUGHT` has changed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from evaluator.store.files import write_atomically
from evaluator.store.reading import SOUGHT, damage_of

_BYTES = 32  # of a digest
_READERS = 8  # parts that are read at a time


def damaged(root: Path, parts: Sequence[Path]) -> dict[Path, str]:
    """The damaged parts below `root`, with the reasons (`damage_of`)."""
    kept = root / ".whole"
    known = _known(kept)
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _READERS)) as readers:
        found = list(readers.map(lambda path: _damage_of(path, known), parts))
    whole = {digest for digest, why in found if why is None and digest is not None}
    if whole - known:
        write_atomically(kept, b"".join([sha256(SOUGHT.encode()).digest(), *sorted(whole)]))
    return {path: why for path, (_, why) in zip(parts, found, strict=True) if why is not None}


def _damage_of(path: Path, known: set[bytes]) -> tuple[bytes | None, str | None]:
    """A part's digest, and the reason if it is damaged."""
    digest = None
    with contextlib.suppress(OSError):  # `damage_of` reports the reason
        digest = sha256(path.read_bytes()).digest()
    return digest, None if digest in known else damage_of(path)


def _known(kept: Path) -> set[bytes]:
    """The digests of the file; empty if `SOUGHT` has changed since."""
    content = b""
    with contextlib.suppress(OSError):
        content = kept.read_bytes()
    first, *digests = [content[start : start + _BYTES] for start in range(0, len(content), _BYTES)] or [b""]
    return set(digests) if first == sha256(SOUGHT.encode()).digest() else set()
