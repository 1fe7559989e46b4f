"""Digests of files: what tells one input, or one output, from another."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pruning.pulse import PULSE

_CHUNK = 1 << 20


def digest_of_file(file: Path) -> str:
    """sha256, hexadecimal, of a file's bytes."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            PULSE.beat()
    return digest.hexdigest()
