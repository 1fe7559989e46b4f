"""Files that appear whole or not at all: written under another name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from evaluator.errors import InputError

_PLACES = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename.

    Raises InputError when the disk is full, or when nothing can be written at that place.
    """
    _atomically(path, lambda handle: handle.write(content))


def write_parquet(table: pa.Table, path: Path) -> None:
    """`write_atomically` of an Arrow table."""
    _atomically(path, lambda handle: pq.write_table(table, handle, compression="zstd"))


def _atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    temporary = path.parent / f".{path.name}.writing"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            write(handle)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        with contextlib.suppress(OSError):  # where nothing can be written, there is nothing to remove either
            temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(f"{path}: no space left on the device; free some and run the same command") from error
        if error.errno in _PLACES:
            raise InputError(f"{path}: cannot write there: {error.strerror}") from error
        raise
