"""The display on a terminal and away from one."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from launch.process import captured
from launch.run.decide.assignments import Event
from launch.run.work.progress import Progress


def _run(progress: Progress) -> None:
    progress.stage("starting Ray")
    progress.on(Event(kind="made", items=0, total=2))
    progress.on(Event(kind="made", items=2, total=2))
    progress.on(Event(kind="loading", engine=0, checkpoint="dense"))
    progress.on(
        Event(kind="loaded", engine=0, checkpoint="dense", swapped=False, seconds=3.2)
    )
    progress.on(
        Event(kind="began", engine=0, checkpoint="dense", task="gazetteer", items=40)
    )
    progress.on(Event(kind="advanced", engine=0, items=20))
    progress.on(Event(kind="advanced", engine=0, items=20))
    progress.on(
        Event(
            kind="ended",
            engine=0,
            checkpoint="dense",
            task="gazetteer",
            items=40,
            seconds=2.0,
        )
    )
    progress.on(
        Event(
            kind="loaded", engine=0, checkpoint="wanda-0.5", swapped=True, seconds=0.02
        )
    )
    progress.on(
        Event(
            kind="began", engine=0, checkpoint="wanda-0.5", task="gazetteer", items=40
        )
    )
    progress.on(Event(kind="ended", engine=0))
    progress.stage("wanda-0.6 gazetteer: 40 items already done")
    progress.on(Event(kind="loading", engine=0, checkpoint="wanda-0.7"))
    progress.on(Event(kind="died", engine=0, text="ActorDiedError"))


def test_plain_lines_away_from_a_terminal() -> None:
    written = io.StringIO()
    with Progress(Console(file=written, width=100)) as progress:
        _run(progress)
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
        "warning: engine 0 died (ActorDiedError); starting it again",
    ]


def test_a_live_line_shows_names_as_they_are_and_nothing_after_the_end() -> None:
    written = io.StringIO()
    console = Console(file=written, width=100, force_terminal=True)
    with Progress(console) as progress:
        progress.on(Event(kind="loading", engine=0, checkpoint="[bold]dense"))
        progress._bars.refresh()
        progress.on(
            Event(
                kind="loaded",
                engine=0,
                checkpoint="[bold]dense",
                swapped=False,
                seconds=1.0,
            )
        )
        progress.on(
            Event(
                kind="began",
                engine=0,
                checkpoint="[bold]dense",
                task="gazetteer",
                items=40,
            )
        )
        progress.on(Event(kind="advanced", engine=0, items=20))
        progress._bars.refresh()
        progress.on(Event(kind="died", engine=0, text="[/red]"))
        progress.on(Event(kind="ended", engine=0))
    text = written.getvalue()
    assert "[bold]dense: loading" in text
    assert "[bold]dense gazetteer" in text
    assert "engine 0 died ([/red])" in text
    assert "20/40" in text
    assert re.search(r"[\d.]+ items/s, 0:00:0\d left", text)
    written = io.StringIO()
    with Progress(Console(file=written, width=100)) as progress:
        progress.on(
            Event(
                kind="began", engine=0, checkpoint="dense", task="gazetteer", items=40
            )
        )
        progress.on(Event(kind="advanced", engine=0, items=20))
    progress.on(Event(kind="ended", engine=0))
    progress.on(Event(kind="died", engine=0, text="ActorDiedError"))
    assert written.getvalue() == ""


def test_what_libraries_write_goes_to_the_log_and_the_terminal_comes_back(
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


def test_a_run_goes_on_when_nobody_reads_what_it_says(tmp_path: Path) -> None:
    """As when the `tee` or `head` that it was piped into has ended. An engine's
    thread is often what speaks next."""
    log = tmp_path / "driver.log"
    program = f"""
from pathlib import Path
from launch.commands.terminal import console
from launch.run.work.progress import Progress
from launch.process import any_output, captured
with any_output():
    with Progress(console) as progress, captured(console, Path({str(log)!r})):
        progress.stage("to nobody")
        progress.warned("nor this")
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
