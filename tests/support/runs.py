"""Running the real command line on tiny models, for tests that need a whole run."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pandas as pd
import pytest

from evaluator.store.cells import Cells
from evaluator.store.reading import cell_parts, read_records
from evaluator.store.schema import RECORDS
from launch.commands import terminal
from launch.commands.cli import main
from launch.sweep.plugins import VARIABLE as PLUGINS
from tests.support.guard import GUARD, UNSTARTED

KEY = ["checkpoint", "task", "language", "item_id", "format", "probe", "seed", "index"]
SECRET = "hf_" + "t0ps3cr3t" * 3  # no run may tell it anybody


def environment() -> dict[str, str]:
    """Quiet, offline and never on somebody else's cluster; without Ray and vLLM for
    a test that is not marked slow."""
    keep = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RAY_ADDRESS", "PYTHONIOENCODING")
    }
    if not GUARD.permits:
        keep["PYTHONPATH"] = os.pathsep.join(
            [str(UNSTARTED), *filter(None, [keep.get("PYTHONPATH")])]
        )
    return keep | {"HF_HUB_OFFLINE": "1", "HF_TOKEN": SECRET, "COLUMNS": "160"}


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "launch.commands.cli", *map(str, arguments)]


def typed(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `resurface ARGUMENTS` in this process."""
    monkeypatch.setattr("sys.argv", ["resurface", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def resurface(
    *arguments: str | Path, cwd: Path | None = None, cluster: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end; `cluster`: the address of a running Ray. In this
    process, which has imported torch and pandas already; in one of its own if the
    environment names plugins, whose registrations would stay."""
    variables = environment() | ({} if cluster is None else {"RAY_ADDRESS": cluster})
    if PLUGINS in variables:
        return resurface_apart(*arguments, cwd=cwd)
    with pytest.MonkeyPatch.context() as patch, _typed(variables, cwd) as (out, err):
        patch.setattr(sys, "argv", ["resurface", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return subprocess.CompletedProcess(
            sys.argv, int(ended.value.code or 0), _text(out), _text(err)
        )


def finish(
    *arguments: str | Path, code: int = 0, **where: Any
) -> subprocess.CompletedProcess[str]:
    """The same, which must end with this exit code."""
    done = resurface(*arguments, **where)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def resurface_apart(
    *arguments: str | Path, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end in a process of its own; `variables` are added
    to its environment."""
    own = environment() | variables
    return subprocess.run(
        command(*arguments),
        env=own,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def _typed(
    variables: Mapping[str, str], cwd: Path | None
) -> Iterator[tuple[TextIO, TextIO]]:
    """Environment, directory, warnings, signal handlers and output are those of a
    command; afterwards as before."""
    with contextlib.ExitStack() as stack:
        for each in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, each, signal.getsignal(each))
        before = dict(os.environ)
        stack.callback(os.environ.update, before)
        stack.callback(os.environ.clear)
        os.environ.clear()
        os.environ.update(variables)
        stack.enter_context(contextlib.chdir(cwd or Path.cwd()))
        stack.enter_context(warnings.catch_warnings())
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        files = [
            stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))
            for _ in range(2)
        ]
        for descriptor, file in zip((1, 2), files, strict=True):
            saved = os.dup(descriptor)
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, descriptor)
            os.dup2(file.fileno(), descriptor)
        for console in (terminal.console, terminal.errors):
            stack.callback(setattr, console, "_width", console._width)
            console.width = int(variables["COLUMNS"])
        stack.enter_context(contextlib.redirect_stdout(files[0]))
        stack.enter_context(contextlib.redirect_stderr(files[1]))
        yield files[0], files[1]


def _text(file: TextIO) -> str:
    file.flush()
    file.seek(0)
    return file.read()


def start(*arguments: str | Path, log: Path) -> subprocess.Popen[bytes]:
    """Run the command line in the background, its output in `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command(*arguments), env=environment(), stdout=output, stderr=output
        )


def records(run: Path) -> pd.DataFrame:
    """Every record of a run, in one order."""
    frames = [
        read_records(cell, parts, RECORDS.names)
        for cell, parts in cell_parts(run).items()
    ]
    found: pd.DataFrame = pd.concat(frames)
    return found.sort_values(KEY).reset_index(drop=True)


def folder_of(run: Path, checkpoint: str) -> Path:
    """Where the records of a checkpoint's first task are."""
    keys = [cell.key for cell in Cells(run) if cell.checkpoint == checkpoint]
    return run / "records" / keys[0] if keys else run / "nowhere"


def assert_alike(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """The same records in the same order, up to rounding in float32: 4e-6 nats in
    sums over 32 tokens."""
    one, other = (frame.reset_index(drop=True) for frame in (found, expected))
    for frame in (one, other):
        ids = [None if each is None else tuple(each) for each in frame["token_ids"]]
        frame["token_ids"] = pd.Series(ids, dtype=object)
    pd.testing.assert_frame_equal(one, other, check_exact=False, rtol=0, atol=1e-4)
