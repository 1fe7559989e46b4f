"""Reads the next checkpoint's files into the page cache while the current one is served, so that a swap does not wait
for a disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import psutil

_SHARE = 0.5  # of the available memory: what is read ahead must not push out what is in use


def read_ahead(checkpoint: Path) -> threading.Thread | None:
    """Begin to read the safetensors of `checkpoint` in the background.

    Returns the thread that reads, or None where nothing is read: there are no such files, they are larger than half of
    the available memory, or the system has no posix_fadvise. A missing file is skipped; loading will report it.
    """
    files = sorted(checkpoint.glob("*.safetensors"))
    if not files or not hasattr(os, "posix_fadvise"):
        return None
    if sum(file.stat().st_size for file in files) > _SHARE * _available_bytes():
        return None
    thread = threading.Thread(target=_advise, args=(files,), name="read-ahead", daemon=True)
    thread.start()
    return thread


def _advise(files: list[Path]) -> None:
    for file in files:
        try:
            descriptor = os.open(file, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def _available_bytes() -> int:
    """Memory that can be had without swapping."""
    return int(psutil.virtual_memory().available)
