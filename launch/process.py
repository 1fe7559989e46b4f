"""SIGTERM ends a run in order, as Ctrl-C does, and then ends the process by the same
signal.

- When a process connects to Ray, Ray replaces its handler of SIGTERM. Ray's handler
  (absl's failure signal handler) calls ours, but also sets an alarm. The alarm
  aborts the process three seconds later. So after Ray has started, we set our
  handler again and cancel the alarm.
- A SystemExit that is raised while Ray starts or waits may get lost, or become
  another one with code 1. So this module records the signal.
- After the last step, a library's thread could still abort the process while the
  interpreter ends. So the process ends itself with the signal, without a handler.

Output never ends a command either (`any_output`)."""

import errno
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import (
    ExitStack,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TextIO

from rich.console import Console

_received: list[int] = []
_lost: list[OSError] = []  # the first error of writing to stdout
# Their reader wants no more: a pipe's end, a terminal that hung up, a descriptor that
# is closed for writing.
_UNREAD = (errno.EPIPE, errno.EIO, errno.EBADF)


class _Output(io.FileIO):
    """A descriptor that loses what its device does not take, instead of raising an
    error."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self.name != 2:  # an error of stderr has no place where it could be told
                _lost[:] = _lost or [error]
            return len(data)


def use_utf8() -> None:
    """Start the program again with file names in UTF-8 if the locale has another
    encoding (ISO 8859-1, or ASCII).

    Only the terminal keeps the locale's. Otherwise a checkpoint's folder would have
    other names elsewhere.
    """
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    encoding = sys.stdout.encoding if sys.stdout else "utf-8"
    os.environ.update(PYTHONUTF8="1", PYTHONIOENCODING=f"{encoding}:replace")
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (our own command, without a shell)


@contextmanager
def any_output() -> Iterator[None]:
    """Within the block stdout and stderr take every text, so that an exit code tells
    of the work alone.

    A question mark replaces a character that the encoding lacks, also in child
    processes. What cannot be written is lost; see `lost_output`."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # closed by the shell (`>&-`): the next file would become the standard output
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    _lost.clear()
    with ExitStack() as stack:
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            given = getattr(sys, name) or open(descriptor, "w", closefd=False)  # noqa: SIM115 (not ours to close)
            # not backed by a file, as in a notebook or a test
            with suppress(io.UnsupportedOperation):
                stack.callback(setattr, sys, name, given)
                setattr(sys, name, _open_output(given, given.fileno(), closefd=False))
                stack.callback(getattr(sys, name).flush)
        os.environ["PYTHONIOENCODING"] = f"{sys.stdout.encoding}:replace"
        yield


def lost_output() -> OSError | None:
    """Why a text of stdout was lost; None if all was written."""
    return _lost[0] if _lost else None


def output_failed() -> OSError | None:
    """The same, without the errors that mean that nobody reads."""
    return _lost[0] if _lost and _lost[0].errno not in _UNREAD else None


def _open_output(like: TextIO, descriptor: int, *, closefd: bool) -> TextIO:
    like.flush()
    sink = io.BufferedWriter(_Output(descriptor, "w", closefd=closefd))
    # `python -u`
    lines = getattr(like, "line_buffering", False) or getattr(
        like, "write_through", False
    )
    return io.TextIOWrapper(
        sink, encoding=like.encoding, errors="replace", line_buffering=lines
    )


def stop_in_order() -> None:
    """From now on SIGTERM raises SystemExit in the main thread. A call from another
    thread does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


@contextmanager
def noting_stop() -> Iterator[None]:
    """Record SIGTERM even if others replace its handler within the block.

    If the signal came, an error that leaves the block becomes SystemExit. Without an
    error, `check_stop` raises it. The interpreter itself writes the number of each
    received signal into a pipe, whichever handler is set.
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
    """Raises SystemExit if SIGTERM came."""
    if _received:
        sys.exit(_received[0])


def is_stop(error: BaseException) -> bool:
    """Whether SIGTERM caused an error. Before Ray has started, Ray's own handler may
    have raised it."""
    return isinstance(error, SystemExit) and (
        bool(_received) or error.code == signal.SIGTERM
    )


def end(code: int) -> NoReturn:
    """End this process, at once where Ray would wait for a server at its end, which
    is lost. Otherwise the run has shut Ray down."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        os._exit(code)
    sys.exit(code)


def end_by_sigterm() -> None:
    """End this process at once: a shell sees exit status 143. Call this after the
    last write."""
    with suppress(OSError):
        sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _stop(number: int, frame: FrameType | None) -> None:
    _note(number)
    sys.exit(number)


def _note(number: int) -> None:
    signal.alarm(0)  # absl's, if its handler was the first
    _received.append(number)


def leave(log: Path) -> Callable[[str], None]:
    """Go on in a child process that no terminal's end reaches: it has a session of its
    own. This must come before any thread.

    The parent waits until the child calls the returned function. It then prints the
    given line, and ends with code 0. If the child ends before, the parent ends with its
    exit code. From that call on, `log` has all that the child prints; until then, an
    error still reaches the terminal."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        os.close(writing)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
        sys.exit(_when_left(child, reading))
    os.setsid()
    os.close(reading)
    early = tempfile.TemporaryFile()  # noqa: SIM115 (until the child ends)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(early.fileno(), 1)

    def left(line: str) -> None:
        log.parent.mkdir(exist_ok=True)
        sys.stdout.flush()
        with log.open("ab") as file:
            early.seek(0)
            shutil.copyfileobj(early, file)
            file.flush()
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
        with suppress(OSError):  # the parent is gone
            os.write(writing, line.encode())
        os.close(writing)

    return left


def _when_left(child: int, reading: int) -> int:
    with open(reading, encoding="utf-8") as pipe:
        try:
            line = pipe.read()
        except KeyboardInterrupt:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise
    if line:
        print(line)
        return 0
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


@contextmanager
def captured(console: Console, log: Path) -> Iterator[None]:
    """Append this process's stdout and stderr to `log`; only `console` still writes
    to the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as stack:
        sink = stack.enter_context(
            log.open("a", encoding="utf-8", errors="replace", buffering=1)
        )
        console.file = _kept(sys.stderr if console.stderr else sys.stdout, stack)
        # None means the current sys.stdout or sys.stderr.
        stack.callback(setattr, console, "file", None)
        for descriptor in (1, 2):
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(sink.fileno(), descriptor)
        stack.enter_context(redirect_stdout(sink))
        stack.enter_context(redirect_stderr(sink))
        yield


def _kept(stream: TextIO, stack: ExitStack) -> TextIO:
    """A stream that keeps writing to the current target of `stream` when its
    descriptor is redirected."""
    try:
        descriptor = os.dup(stream.fileno())
    except (
        OSError,
        io.UnsupportedOperation,
    ):  # not backed by a file, as in a notebook or a test
        return stream
    kept = _open_output(stream, descriptor, closefd=True)
    stack.callback(kept.close)
    return kept
