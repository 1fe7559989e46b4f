"""The display on a terminal and away from one."""

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
    Completed,
    Died,
    Ended,
    GaveUp,
    Loaded,
    Loading,
    Made,
    Noted,
    Phase,
    Retried,
    Unplaced,
)
from launch.run.state import Bus
from launch.run.work.progress import Progress

BEGAN = Began(engine=0, checkpoint="dense", task="gazetteer", items=40)
EVENTS = (
    Phase("starting Ray"),
    Made(items=0, total=2),
    Made(items=2, total=2),
    Loading(engine=0, checkpoint="dense"),
    Loaded(engine=0, checkpoint="dense", swapped=False, seconds=3.2),
    BEGAN,
    Advanced(engine=0, items=20),
    Advanced(engine=0, items=20),
    Ended(engine=0, checkpoint="dense", task="gazetteer", items=40, seconds=2.0),
    Loaded(engine=0, checkpoint="wanda-0.5", swapped=True, seconds=0.02),
    BEGAN,
    Ended(engine=0),
    Noted("wanda-0.6 gazetteer: 40 items already done"),
    Checked("a finding"),
    Checked("a doubt", warning=True),
    Loading(engine=0, checkpoint="wanda-0.7"),
    Unplaced(engine=1, text="1 free GPU on one node"),
    GaveUp(Failure(checkpoint="wanda-0.8", stage="load", reason="no")),
    Retried(engine=0),
    Completed(checkpoint="dense"),
    Died(engine=0, text="ActorDiedError"),
)


def test_plain_lines_without_terminal() -> None:
    written = io.StringIO()
    with Progress(Console(file=written, width=100)) as progress:
        bus = Bus(progress.on)
        for event in EVENTS:
            bus.report(event)
    text = written.getvalue()
    assert "\x1b" not in text
    times, lines = zip(*(line.split(" ", 1) for line in text.splitlines()), strict=True)
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", each) for each in times)
    assert list(lines) == [
        "starting Ray",
        "compressed 2 checkpoints",
        "dense: engine started in 3.20 s (engine 0)",
        "dense gazetteer: 40 items in 2.0 s, 20.0 items/s",
        "wanda-0.5: swapped in place in 0.02 s (engine 0)",
        "wanda-0.6 gazetteer: 40 items already done",
        "a finding",
        "warning: a doubt",
        "warning: engine 1 waits for 1 free GPU on one node",
        "warning: wanda-0.8 does not load, and was set aside: no",
        "warning: engine 0 died (ActorDiedError); starting it again",
    ]


def test_live_line_escapes_names() -> None:
    written = io.StringIO()
    console = Console(file=written, width=100, force_terminal=True)
    name = "[bold]dense"
    with Progress(console) as progress:
        bus = Bus(progress.on)
        bus.report(Loading(engine=0, checkpoint=name))
        progress._bars.refresh()
        bus.report(Loaded(engine=0, checkpoint=name, seconds=1.0))
        bus.report(Began(engine=0, checkpoint=name, task="gazetteer", items=40))
        bus.report(Advanced(engine=0, items=20))
        progress._bars.refresh()
        bus.report(Died(engine=0, text="[/red]"))
        bus.report(Ended(engine=0))
    text = written.getvalue()
    assert "[bold]dense: loading" in text
    assert "[bold]dense gazetteer" in text
    assert "engine 0 died ([/red])" in text
    assert "20/40" in text
    assert re.search(r"[\d.]+ items/s, 0:00:0\d left", text)
    written = io.StringIO()
    with Progress(Console(file=written, width=100)) as progress:
        bus = Bus(progress.on)
        bus.report(BEGAN)
        bus.report(Advanced(engine=0, items=20))
    bus.report(Ended(engine=0))
    bus.report(Died(engine=0, text="ActorDiedError"))
    assert written.getvalue() == ""


def test_library_output_goes_to_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    console = Console(width=100)
    log = tmp_path / "logs" / "driver.log"
    with captured(console, log):
        print("from Python")
        print("a warning", file=sys.stderr)
        os.write(1, b"from C++\n")
        os.write(2, b"an error from C++\n")
        console.print("for the user")
    print("afterwards")
    console.print("and this")
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("for the user\nafterwards\nand this\n", "")
    assert log.read_text().splitlines() == [
        "from Python",
        "a warning",
        "from C++",
        "an error from C++",
    ]
    console = Console(width=100)
    with pytest.raises(KeyboardInterrupt), captured(console, tmp_path / "driver.log"):
        raise KeyboardInterrupt
    os.write(1, b"here again\n")
    console.print("and here")
    assert capfd.readouterr().out == "here again\nand here\n"


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
