"""The cause of a process's death, from the last lines of its log: the only information
if the process is gone.
"""

import re
from pathlib import Path

from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from evaluator.core.errors import ResurfaceError, one_line
from evaluator.core.liveness import Hung

_TAIL_BYTES = 2**16
_ERROR = re.compile(
    # Python: the last line of a traceback
    r"\b(?:[A-Za-z_][\w.]*(?:Error|Exception)\b:\s+\S.*"
    r"|Fatal Python error: .*|SIG[A-Z]+ received at .*|Segmentation fault.*|Bus"
    r" error.*|Illegal instruction.*"
    r"|terminate called .*|Check failed: .*|(?:CUDA|NCCL|HIP) error.*"
    # vLLM: a process of one of an engine's GPUs
    r"|Worker proc .* died unexpectedly.*)"
)
# in a caller of an ended process
_EMPTY = re.compile(r"\b(?:RuntimeError|CancelledError): cancell?ed\s*$")


def last_words(error: Exception, log: Path, start: int) -> str:
    """The cause of an error in one line; if Ray only knows that a process is gone,
    from its log after byte `start`."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, OutOfMemoryError):
        return "its process was ended by Ray, as its node was running out of memory"
    if isinstance(cause, ResurfaceError | Hung):
        text = str(cause)
        if _EMPTY.search(text):
            text = last_error(tail(log, start)) or text
    elif isinstance(cause, RayError):
        text = last_error(tail(log, start)) or (
            "its process ended without a word: it was killed, or out of memory, or"
            " Ray's disk is full"
        )
    else:
        text = f"{type(cause).__name__}: {cause}"
    return one_line(text, 300)


def last_error(log: str) -> str | None:
    """The last error in a log, without the logger's prefix; None without one."""
    for line in reversed(log.splitlines()):
        found = _ERROR.search(line)
        if found is not None and not _EMPTY.search(found[0]):
            return " ".join(found[0].split())
    return None


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def tail(path: Path, start: int) -> str:
    """The end of a log, from byte `start` at the earliest; empty if unreadable, as
    on another node's disk."""
    try:
        with path.open("rb") as log:
            log.seek(max(start, size(path) - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
