"""Runs the user's command at the first failure of a run, and at its end
(`--notify`)."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evaluator.core.errors import InputError, one_line
from evaluator.core.isolated import run_isolated
from launch.run.events import GaveUp, Judged, Tell

if TYPE_CHECKING:
    from launch.run.events import End, Event

_PATIENCE = 30.0  # seconds that the command may take; its process group is killed then


def command_of(text: str) -> tuple[str, ...]:
    """The words of a command. No shell reads them. Raises InputError if it cannot be
    run."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"--notify: {text!r}: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise InputError(
            f"--notify: {text!r}:"
            f" {'is empty' if not words else f'there is no program {words[0]!r}'}"
        )
    return words


class Notifying:
    """Can neither delay a run, but for `_PATIENCE` at its end, nor fail it: a
    failure is only a warning."""

    def __init__(self, command: Sequence[str], run_dir: Path, warn: Tell) -> None:
        self._command, self._run_dir, self._warn = command, run_dir, warn
        self.verdict = ""  # of the gate, once the report is written
        # runs the command for the first failure
        self._first: threading.Thread | None = None

    def on(self, event: Event, _: object = None) -> None:
        if isinstance(event, Judged):
            from evaluator.deciding.verdict_text import notice

            self.verdict = notice(event.verdicts)
        if isinstance(event, GaveUp) and self._first is None:
            self._first = threading.Thread(
                target=self._run, args=("failed", event.failure.text), daemon=True
            )
            self._first.start()

    def end(self, event: End) -> None:
        """Run the command after the last write, and after its call for the first
        failure."""
        if self._first is not None:
            self._first.join()
        self._run(
            "partial" if event.state == "finished_with_failures" else event.state,
            "; ".join(filter(None, (self.verdict, event.text))),
        )

    def _run(self, state: str, message: str) -> None:
        line = one_line(f"{self._run_dir}: {state}{': ' * bool(message)}{message}", 500)
        variables = {
            "RESURFACE_RUN": str(self._run_dir.absolute()),
            "RESURFACE_STATE": state,
            "RESURFACE_MESSAGE": line,
        }
        logs = self._run_dir / "logs"  # absent if the run was refused
        log = logs / "notify.log" if logs.is_dir() else Path(os.devnull)
        try:
            ending = run_isolated(
                self._command, log, env=os.environ | variables, timeout=_PATIENCE
            )
        except (OSError, ValueError) as error:
            self._warn(f"--notify: {one_line(error)}")
        else:
            if ending.code != 0:
                self._warn(f"--notify: {self._command[0]} {ending.how}")
