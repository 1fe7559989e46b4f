"""Work in a separate process. When it ends, its whole process group is killed, so
that nothing stays behind."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from evaluator.core.errors import one_line

_ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 2.0  # between two calls of `meanwhile`


@dataclass(frozen=True, slots=True)
class Ending:
    code: int | None  # negative: a signal; None: it was killed at its time limit
    last_line: str  # of its output
    how: str  # "ended with exit code 1 (the last line)"


def environment(**changes: str) -> dict[str, str]:
    """This process's environment for a child, which finds the packages that this
    process was started from."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **changes}


def run_isolated(
    command: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout: float | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Ending:
    """Run `command` to its end, or for `timeout` seconds. `log` gets its output.
    `meanwhile` runs every 2 s."""
    end = None if timeout is None else time.monotonic() + timeout
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        code: int | None = None
        try:
            while code is None and (end is None or time.monotonic() < end):
                pause = _LOOK_SECONDS
                if end is not None:
                    pause = max(0.0, min(pause, end - time.monotonic()))
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(pause)
                if code is None and meanwhile is not None:
                    meanwhile()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = one_line(lines[-1], 300) if lines else ""
    if code is None:
        how = f"has no result after {timeout:g} s"
    elif code < 0:
        how = f"died of {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}"
    return Ending(code, last, f"{how} ({last})" if last else how)
