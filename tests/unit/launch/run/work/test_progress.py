"""The display on a terminal and away from one."""

import contextlib
import io
import os
import re
import subprocess
import sys
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
    Loading,
    Made,
    Unplaced,
)
from launch.run.state import Bus
from launch.run.work.progress import Progress

BEGAN = Began(engine=0, checkpoint="[bold]dense", task="gazetteer", items=40)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Made(items=0, total=2), ""),
        (Made(items=1, total=1), "compressed 1 checkpoint"),
        (Loaded(engine=0, checkpoint="dense", seconds=3.2), "dense: engine started in 3.20 s (engine 0)"),
        (Loaded(engine=0, checkpoint="a", swapped=True, seconds=0.02), "a: swapped in place in 0.02 s (engine 0)"),
        (Ended(engine=0, checkpoint="dense", task="t", items=40, seconds=2.0),
         "dense t: 40 items in 2.0 s, 20.0 items/s"),
        (Checked("a doubt", warning=True), "warning: a doubt"),
        (Unplaced(engine=1, text="1 free GPU"), "warning: engine 1 waits for 1 free GPU"),
        (GaveUp(Failure(checkpoint="a", stage="load", reason="no")),
         "warning: a does not load, and was set aside: no"),
        (Died(engine=0, text="[/red]"), "warning: engine 0 died ([/red]); starting it again"),
    ],
)  # fmt: skip
def test_line_of_an_event(event, line) -> None:
    written = io.StringIO()
    with Progress(Console(file=written, width=100)) as progress:
        bus = Bus(progress.on)
        bus.report(event)
    bus.report(event)  # an engine's thread may still speak when all is over
    time, _, text = written.getvalue().partition(" ")
    assert text.removesuffix("\n") == line
    assert bool(re.fullmatch(r"\d\d:\d\d:\d\d", time)) == bool(line)


def test_work_is_told_without_terminal() -> None:
    """After a minute and a tenth of the items, and not at the end."""
    written, clock = io.StringIO(), [0.0]
    with Progress(Console(file=written, width=100)) as progress:
        progress._bars.get_time = lambda: clock[0]
        bus = Bus(progress.on)
        bus.report(BEGAN)
        for seconds, items in (
            (30, 4),
            (70, 4),
            (100, 4),
            (131, 2),
            (140, 2),
            (200, 24),
        ):
            clock[0] = seconds
            bus.report(Advanced(engine=0, items=items))
    lines = [line.partition(" ")[2] for line in written.getvalue().splitlines()]
    assert lines == [
        "[bold]dense gazetteer: 8 of 40 items, 0.1 items/s, 4 min 40 s left",
        "[bold]dense gazetteer: 14 of 40 items, 0.1 items/s, 4 min 3 s left",
    ]


def test_live_line_escapes_names() -> None:
    written = io.StringIO()
    console = Console(file=written, width=100, force_terminal=True)
    with Progress(console) as progress:
        bus = Bus(progress.on)
        bus.report(Loading(engine=0, checkpoint="[bold]dense"))
        progress._bars.refresh()
        bus.report(Loaded(engine=0, checkpoint="[bold]dense"))
        bus.report(BEGAN)
        bus.report(Advanced(engine=0, items=20))
        progress._bars.refresh()
        bus.report(Ended(engine=0))
    text = written.getvalue()
    assert "[bold]dense: loading" in text
    assert "[bold]dense gazetteer" in text
    assert "20/40" in text
    assert re.search(r"[\d.]+ items/s, [\d.]+ s left", text)


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
