"""The next checkpoint's files brought into the page cache while the present one is served, so that a swap waits for
memory and not for a disk."""

from __future__ import annotations

import os
import threading
from pathlib import Path

_SHARE = 0.5  # of the memory that is available: what is read ahead must not push out what is in use


def read_ahead(checkpoint: Path) -> threading.Thread | None:
    """Begin to read the safetensors of `checkpoint` in the background.

    Returns the thread that does it, or None where nothing is read: no such files, more than half of the memory that is
    available, or a system that cannot be told. A file that goes missing meanwhile is left out; whoever loads the
    checkpoint will say so.
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
    """Memory that can be had without swapping; 0 where the kernel does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
