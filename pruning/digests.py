"""Digests of files: what tells one input, or one output, from another."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from evaluator.core.liveness import HEARTBEAT

_CHUNK = 1 << 20


def digest_of_file(file: Path) -> str:
    """sha256, hexadecimal, of a file's bytes."""
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            HEARTBEAT.beat()
    return digest.hexdigest()


def digest_once(file: Path) -> str:
    """The same, of a file that is read once by this process, as long as neither its size nor its time changes: a sweep
    that is resumed asks it of one source for each checkpoint that was made of it."""
    state = file.stat()
    return _digest_as_of(file, state.st_ino, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _digest_as_of(file: Path, *_: int) -> str:
    return digest_of_file(file)
