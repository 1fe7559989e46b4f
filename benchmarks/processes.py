"""Processes of a benchmark: its own, with its options; and one of each side, which answers in lines of JSON.

with Child("ours", module_command("benchmarks.serving.sides", "ours", "score", file)) as ours:
    result = ours.round()
measured = answer_of("recipe", module_command("benchmarks.pruning.prune", "--job", work))
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

from evaluator.core.errors import InputError, ResurfaceError

_ROOT = Path(__file__).resolve().parents[1]


def module_command(module: str, *arguments: object) -> list[str]:
    """The command that runs a module; to be started in `environment()`, in which it is found.

    `-P`: the working directory is no place to look for modules.
    """
    return [sys.executable, "-P", "-m", module, *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, in which a child finds the packages that this one was started from."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **changes}


class Options(argparse.ArgumentParser):
    """A benchmark's options. Its help is a module's docstring as it stands; `parse_args` raises InputError for what is
    wrong, which `run_main` makes one line without a usage text."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def count(text: str) -> int:
    """The value of an option that counts: at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a count of at least 1")
    return int(text)


def settings(text: str) -> dict[str, Any]:
    """The value of an option that holds settings: a JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a benchmark. An error that is raised for a user to read becomes one line on stderr, and
    exit code 2 where the user can mend it, 1 elsewhere."""
    try:
        main()
    except ResurfaceError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, InputError) else 1) from None


def answer_of(
    name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> dict[str, Any]:
    """Run a process to its end; its last line is the answer. `name` is what an error calls it.

    Raises SystemExit with the last line of its stderr if it fails.
    """
    done = subprocess.run(
        command, env=environment() if env is None else env, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed: {_last_line(done.stderr)}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Child:
    """A side's process, kept for all rounds: it does one round of its work per line it reads, and answers with one
    line of JSON. It says `{}` when it is ready, for which the constructor waits."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """Raises SystemExit, with the last line of the process's stderr, if it ends before it is ready."""
        self.results: list[dict[str, Any]] = []  # of every round so far
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in `close`)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment() if env is None else env,
            cwd=cwd,
        )
        try:
            self._answer()
        except SystemExit:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def round(self) -> dict[str, Any]:
        """One round of the work; returns its result. Raises SystemExit if the process ends instead."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # of a process that has ended, `_answer` says why
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
        self.results.append(self._answer())
        return self.results[-1]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        code = self._process.wait()
        self._errors.seek(0)
        raise SystemExit(f"{self._name} failed with exit code {code}: {_last_line(self._errors.read())}")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def _last_line(text: str) -> str:
    return (text.strip() or "no message").splitlines()[-1]
