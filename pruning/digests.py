"""Digests of files: what tells one input, or one output, from another."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest_of_file(file: Path) -> str:
    """sha256, hexadecimal, of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
