"""Which parts of records were found whole before, by the digests of their bytes.

    RUN/records/.whole    SHA-256 of what is looked for in a part, then of each part

To read all of a part costs a hundred times what its digest does, and the same bytes are as whole as they were. What
changed in a part, or in this file, changes a digest: that part is read again.
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
    """Which of the parts below `root` cannot be read, and why (`damage_of`)."""
    kept = root / ".whole"
    known = _known(kept)
    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), _READERS)) as readers:
        found = list(readers.map(lambda path: _damage_of(path, known), parts))
    whole = {digest for digest, why in found if why is None and digest is not None}
    if whole - known:
        write_atomically(kept, b"".join([sha256(SOUGHT.encode()).digest(), *sorted(whole)]))
    return {path: why for path, (_, why) in zip(parts, found, strict=True) if why is not None}


def _damage_of(path: Path, known: set[bytes]) -> tuple[bytes | None, str | None]:
    """The digest of a part, and its damage."""
    digest = None
    with contextlib.suppress(OSError):  # `damage_of` says whose fault it is
        digest = sha256(path.read_bytes()).digest()
    return digest, None if digest in known else damage_of(path)


def _known(kept: Path) -> set[bytes]:
    """None where something else is looked for in a part now."""
    content = b""
    with contextlib.suppress(OSError):
        content = kept.read_bytes()
    first, *digests = [content[start : start + _BYTES] for start in range(0, len(content), _BYTES)] or [b""]
    return set(digests) if first == sha256(SOUGHT.encode()).digest() else set()
