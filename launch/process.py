"""SIGTERM ends a run in order, as Ctrl-C does, and then the process by that very signal.

Ray replaces the handler of the signal when a process connects to it. Its own hands the signal on, but sets an alarm too
that aborts the process three seconds later, wherever it then is (absl's failure signal handler): so ours is set again
after Ray was started, and an alarm that was set meanwhile is taken back. A SystemExit that is raised while Ray starts
or waits comes out of it as another one, with code 1, or not at all: so that the signal came is noted here. And where
nothing is left to do, a library's thread could still abort the process while the interpreter ends: so the last step is
the signal again, without a handler.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TextIO

from rich.console import Console

_received: list[int] = []


def stop_in_order() -> None:
    """From now on SIGTERM raises SystemExit in the main thread. Not called from it, this does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


@contextlib.contextmanager
def noting_stop() -> Iterator[None]:
    """Within the block, others may replace the handler of SIGTERM. If the signal came, whatever error leaves the block
    does so as SystemExit; where none does, `check_stop` raises it.

    The interpreter itself writes the number of each signal that reaches it, whoever handles it, into a pipe.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    try:
        yield
    finally:
        stop_in_order()
        signal.set_wakeup_fd(before)
        os.close(told)
        with open(noted, "rb") as numbers:
            came = signal.SIGTERM in (numbers.read() or b"")
        if came:
            _note(signal.SIGTERM)
            if sys.exc_info()[0] is not None:
                check_stop()


def check_stop() -> None:
    """Raises SystemExit where SIGTERM came."""
    if _received:
        sys.exit(_received[0])


def is_stop(error: BaseException) -> bool:
    """Whether an error is what SIGTERM has raised. Before Ray has started, its handler may have done so."""
    return isinstance(error, SystemExit) and (bool(_received) or error.code == signal.SIGTERM)


def end_by_sigterm() -> None:
    """End this process here and now: a shell sees exit status 143. What must be written, was."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _stop(number: int, frame: FrameType | None) -> None:
    _note(number)
    sys.exit(number)


def _note(number: int) -> None:
    signal.alarm(0)  # absl's, if its handler was the first
    _received.append(number)


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
