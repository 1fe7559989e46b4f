"""What an engine's process said last: all that is known of one that died."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 2**16
_ERROR = re.compile(
    r"\b(?:[A-Za-z_][\w.]*(?:Error|Exception)\b:\s+\S.*"  # of Python: the last line of a traceback
    r"|Fatal Python error: .*|SIG[A-Z]+ received at .*|Segmentation fault.*|Bus error.*|Illegal instruction.*"
    r"|terminate called .*|Check failed: .*|(?:CUDA|NCCL|HIP) error.*)"
)


def last_error(log: str) -> str | None:
    """The last thing in a log that says what went wrong, without what a logger puts before it; None without one."""
    for line in reversed(log.splitlines()):
        found = _ERROR.search(line)
        if found is not None:
            return " ".join(found[0].split())
    return None


def size(path: Path) -> int:
    """Bytes of a log; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, start: int) -> str:
    """The end of a log, from byte `start` at the earliest; empty where it cannot be read, as on another node's disk."""
    try:
        with path.open("rb") as log:
            log.seek(max(start, size(path) - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
