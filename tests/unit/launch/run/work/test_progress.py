"""The display on a terminal and away from one."""

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from evaluator.store.run_json import Failure
from launch.process import captured
from launch.run.events import (
    Advanced,
    Began,
    Checked,
    Died,
    Ended,
    GaveUp,
    Loaded,
    Made,
)
from launch.run.state import Bus
from launch.run.work import progress
from launch.run.work.progress import Progress, Steps

BEGAN = Began(engine=0, checkpoint="[bold]dense", task="gazetteer", items=40)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Made(items=0, total=2), ""),
        (Loaded(engine=0, checkpoint="a", swapped=True, seconds=0.02), "a: swapped in place in 0.02 s (engine 0)"),
        (Checked("a doubt", warning=True), "warning: a doubt"),
        (GaveUp(Failure(checkpoint="a", stage="load", reason="no")),
         "warning: a cannot be used, and was set aside: no"),
        (Died(engine=0, text="[/red]"), "warning: engine 0 died ([/red]); starting it again"),
    ],
)  # fmt: skip
def test_line_of_an_event(event, line) -> None:
    written = io.StringIO()
    with Progress(Console(file=written, width=100)) as shown:
        bus = Bus(shown.on)
        bus.report(event)
    bus.report(event)  # an engine's thread may still speak when all is over
    time, _, text = written.getvalue().partition(" ")
    assert text.removesuffix("\n") == line
    assert bool(re.fullmatch(r"\d\d:\d\d:\d\d", time)) == bool(line)


def test_bar_is_that_of_the_shown_task() -> None:
    """Shards of the next task may come first, and end first."""
    named = {"engine": 0, "checkpoint": "a"}
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with Progress(console) as shown:
        bus = Bus(shown.on)
        bus.report(Began(**named, task="one", items=4))
        for task in ("two", "one"):
            bus.report(Advanced(**named, task=task, items=2))
        bus.report(Ended(**named, task="two", items=2, seconds=1.0))
        (bar,) = shown._bars.tasks
        assert (bar.description, bar.completed, bar.total) == ("a one", 2, 4)
        bus.report(Ended(**named, task="one", items=2, seconds=1.0))
        assert shown._bars.tasks == []


def test_steps_are_never_silent_for_long(monkeypatch) -> None:
    """A step aloud is told at once, another only where it lasts, and again."""
    monkeypatch.setattr(progress, "_SILENCE", 0.2)
    told: list[str] = []
    with Steps(told.append) as step:
        step("a: weights", True)
        step("b: files", False)
        while len(told) < 3:
            time.sleep(0.05)
        step("b: heads", False)
    assert told[:3] == ["checking a: weights", *["checking b: files"] * 2]


def test_library_output_goes_to_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    console, log = Console(width=100), tmp_path / "logs" / "driver.log"
    with contextlib.suppress(KeyboardInterrupt), captured(console, log):
        print("from Python")
        print("a warning", file=sys.stderr)
        os.write(1, b"from C++\n")
        os.write(2, b"an error from C++\n")
        console.print("for the user")
        raise KeyboardInterrupt
    os.write(1, b"afterwards\n")
    console.print("and this")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("for the user\nafterwards\nand this\n", "")
    logged = "from Python\na warning\nfrom C++\nan error from C++\n"
    assert log.read_text() == logged


def test_closed_output_stops_no_run(tmp_path: Path) -> None:
    """As when the `tee` or `head` that it was piped into has ended. An engine's
    thread is often what speaks next."""
    log = tmp_path / "driver.log"
    program = f"""
from pathlib import Path
from launch.commands.terminal import console
from launch.run.state import Bus
from launch.run.events import Phase, Warned
from launch.run.work.progress import Progress
from launch.process import any_output, captured
with any_output():
    with Progress(console) as progress, captured(console, Path({str(log)!r})):
        bus = Bus(progress.on)
        bus.report(Phase("to nobody"))
        bus.report(Warned("nor this"))
        print("for the log")
    console.print("nor this")
"""
    end, pipe = os.pipe()
    os.close(end)
    with os.fdopen(pipe, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=output,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert log.read_text() == "for the log\n"
