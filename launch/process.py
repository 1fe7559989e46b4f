"""SIGTERM ends a run in order, as Ctrl-C does, and then ends the process by the same signal.

- When a process connects to Ray, Ray replaces its handler of SIGTERM. Ray's handler (absl's failure signal handler)
  calls ours, but also sets an alarm. The alarm aborts the process three seconds later. So after Ray has started, we
  set our handler again and cancel the alarm.
- A SystemExit that is raised while Ray starts or waits may get lost, or become another one with code 1. So this module
  records the signal.
- After the last step, a library's thread could still abort the process while the interpreter ends. So the process ends
  itself with the signal, without a handler."""

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
    """From now on SIGTERM raises SystemExit in the main thread. A call from another thread does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


@contextlib.contextmanager
def noting_stop() -> Iterator[None]:
    """Record SIGTERM even if others replace its handler within the block.

    If the signal came, an error that leaves the block becomes SystemExit. Without an error, `check_stop` raises it.
    The interpreter itself writes the number of each received signal into a pipe, whichever handler is set."""
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
    """Raises SystemExit if SIGTERM came."""
    if _received:
        sys.exit(_received[0])


def is_stop(error: BaseException) -> bool:
    """Whether SIGTERM caused an error. Before Ray has started, Ray's own handler may have raised it."""
    return isinstance(error, SystemExit) and (bool(_received) or error.code == signal.SIGTERM)


def end_by_sigterm() -> None:
    """End this process at once: a shell sees exit status 143. Call this after the last write."""
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
    """Append this process's stdout and stderr to `log`; only `console` still writes to the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(log.open("a", encoding="utf-8", errors="replace", buffering=1))
        console.file = _kept(sys.stdout, stack)
        # None means the current sys.stdout.
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
    """Close a stream. If its reader is gone, the unwritten rest is lost."""
    with contextlib.suppress(BrokenPipeError):
        stream.close()
