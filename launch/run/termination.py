"""SIGTERM ends a run in order, as Ctrl-C does, and then the process by that very signal.

Ray replaces the handler of the signal when a process connects to it. Its own hands the signal on, but sets an alarm too
that aborts the process three seconds later, wherever it then is (absl's failure signal handler): so ours is set again
after Ray was started. A SystemExit that is raised while Ray waits comes out of it as another one, with code 1: so that
the signal came is noted here. And where nothing is left to do, a library's thread could still abort the process while
the interpreter ends: so the last step is the signal again, without a handler.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from types import FrameType

_received: list[int] = []


def stop_in_order() -> None:
    """From now on SIGTERM raises SystemExit in the main thread. Not called from it, this does nothing."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _stop)


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
    _received.append(number)
    sys.exit(number)
