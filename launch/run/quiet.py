"""While a run works, the terminal belongs to the progress display.

What libraries write, Ray's C++ side included, goes to a log of the run instead.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console


@contextlib.contextmanager
def captured(console: Console, log: Path) -> Iterator[None]:
    """Append stdout and stderr of this process to `log`, and leave the terminal to `console` alone."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(log.open("a", encoding="utf-8", errors="replace", buffering=1))
        console.file = _kept(sys.stdout, stack)
        # Back to whatever sys.stdout is by then.
        stack.callback(setattr, console, "file", None)
        for descriptor in (1, 2):
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(sink.fileno(), descriptor)
        stack.enter_context(contextlib.redirect_stdout(sink))
        stack.enter_context(contextlib.redirect_stderr(sink))
        yield


def _kept(stream: TextIO, stack: contextlib.ExitStack) -> TextIO:
    """A stream that keeps writing to the current target of `stream` when its descriptor is redirected."""
    try:
        descriptor = os.dup(stream.fileno())
    except (OSError, io.UnsupportedOperation):  # not backed by a file, as in a notebook or a test
        return stream
    kept = open(descriptor, "w", encoding=stream.encoding, errors=stream.errors)  # noqa: SIM115 (`_close`)
    stack.callback(_close, kept)
    return kept


def _close(stream: TextIO) -> None:
    """Where nobody reads it any more, what could not be written cannot be written now either."""
    with contextlib.suppress(BrokenPipeError):
        stream.close()
