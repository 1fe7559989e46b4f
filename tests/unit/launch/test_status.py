"""What a run's files say of how it is getting on, whatever of them is there, and
what `resurface status` prints."""

import io
import itertools
import json
import os
import subprocess
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from evaluator.core.lease import FOLDER, Lease
from evaluator.core.liveness import LeaseClaim, Owner, Pace, this_process
from launch.commands.status import _page
from launch.run.directory.event_log import History
from launch.run.directory.live import EngineStatus, Live, LiveFiles
from launch.run.events import Advanced, Began
from launch.run.state import Bus
from launch.status import (
    Driver,
    RunDocument,
    driver_of,
    finished_items,
    read_status,
    summarise,
)
from tests.support.runs import command, typed
from tests.support.sweeps import refused

PLANNED = {
    "dense": {"xquad": 40, "tydiqa": 20},
    "wanda-0.5": {"xquad": 40, "tydiqa": 20},
}
ALIVE = Driver(name="process 12 on node-b", alive=True)
GONE = replace(ALIVE, alive=False, why="its driver (process 12 on node-b) is gone")
ENGINE = EngineStatus(
    engine=0,
    gpu="",
    state="evaluating",
    checkpoint="dense",
    task="tydiqa",
    items=20,
    done=10,
    seconds=3.5,
    idle_share=0.25,
)
LIVE = Live(
    items_per_second=2.0,
    pruning={"done": 1, "total": 2},
    engines=(ENGINE,),
    errors=("engine 0 died (ActorDiedError)",),
)
DONE = {("dense", "xquad"): 40, ("dense", "tydiqa"): 10}
FAILURE = {"checkpoint": "wanda-0.5", "stage": "load", "reason": "no such layer"}


def _summary(driver: Driver | None = ALIVE, **more: Any) -> Any:
    """More fields of run.json, or other contents of the other files."""
    files: dict[str, Any] = {"done": DONE, "live": LIVE, "history": History()}
    files |= {name: more.pop(name) for name in [*files] if name in more}
    document = {"state": "running", "planned": PLANNED} | more
    run = RunDocument.model_validate(document)
    return summarise("runs/x", run, driver=driver, **files)


def _printed(found: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(_page(found))
    return console.file.getvalue()


def test_running_run() -> None:
    found = _summary()
    assert (found.state, found.done, found.total) == ("running", 50, 120)
    assert (found.checkpoints, found.count("running")) == (2, 1)
    assert (found.items_per_second, found.seconds_left) == (2.0, 70 / 2.0)
    assert (found.pruned, found.to_prune) == (1, 2)
    assert found.engines == (ENGINE,)
    assert found.errors == ("engine 0 died (ActorDiedError)",)


def test_stale_run() -> None:
    found = _summary(driver=GONE)
    assert (found.state, found.why) == (
        "stale",
        "its driver (process 12 on node-b) is gone; the same command resumes",
    )
    assert (found.count("running"), found.engines) == (0, ())
    assert (found.items_per_second, found.seconds_left) == (None, None)


def test_time_left_counts_loads() -> None:
    """One checkpoint waits, then an engine starts too."""
    history = History(
        began="2026", counts=Counter(started=2, died=1), load_seconds=30.0
    )
    found = _summary(history=history)
    assert found.seconds_left == 70 / 2.0 + 30.0
    assert "began 2026; calls 2, deaths of engines 1, retries 0" in _printed(found)
    starting = EngineStatus(
        engine=1, gpu="", state="starting", checkpoint=None, seconds=20.0
    )
    live = replace(LIVE, engines=(ENGINE, starting))
    found = _summary(live=live, history=history)
    assert found.seconds_left == 70 / 2.0 + (30.0 + 10.0) / 2


def test_finished_run_shows_last_engines() -> None:
    rows = [
        {"engine": 0, "checkpoint": "dense", "device": "cpu", "idle_share": 0.5},
        {"engine": 0, "checkpoint": "wanda-0.5", "device": "cpu", "gpu": "a: 3 (1/2)"},
    ]
    found = _summary(driver=None, state="finished", engine_stats=rows)
    (engine,) = found.engines
    assert (found.state, engine.state, engine.checkpoint) == (
        "finished",
        "ended",
        "wanda-0.5",
    )
    assert "a: 3 (1/2)" in _printed(found)


def test_failed_checkpoint_is_not_waited_for() -> None:
    found = _summary(failures=[FAILURE])
    assert (found.count("failed"), found.seconds_left) == (2, 10 / 2.0)
    assert found.errors[-1] == "wanda-0.5: load: no such layer"


def test_records_without_a_plan() -> None:
    found = _summary(driver=None, state="failed", error="a\nb", planned={})
    assert (found.state, found.why) == ("failed", "a b")
    assert (found.done, found.total, found.seconds_left) == (50, None, None)


def _write(run: Path, state: str = "running") -> Path:
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"state": state, "planned": PLANNED}))
    return run


def _claimed(run: Path, owner: Owner) -> None:
    claim = LeaseClaim(number=1, token="t", owner=owner, locked=True, released=False)
    (run / FOLDER).mkdir(parents=True, exist_ok=True)
    (run / FOLDER / "000001.json").write_text(json.dumps(asdict(claim)))


def test_items_by_the_names_of_parts(tmp_path: Path) -> None:
    for name in ("000000-20.parquet", "000020-7.parquet", ".000027-5.parquet", "x.txt"):
        file = tmp_path / "dense" / "xquad" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"not opened")
    (tmp_path / "dense" / "empty").mkdir()
    (tmp_path / "dense" / "stray.txt").touch()
    expected = {("dense", "empty"): 0, ("dense", "xquad"): 27}
    assert finished_items(tmp_path) == expected
    assert finished_items(tmp_path / "nowhere") == {}


def test_driver_on_this_machine(tmp_path: Path) -> None:
    assert read_status(_write(tmp_path)).state == "stale"  # nobody has claimed it
    held = Lease(tmp_path)
    assert driver_of(tmp_path) == Driver(name=str(this_process()), alive=True)
    assert read_status(tmp_path).state == "running"
    held.release()
    why = f"its driver ({this_process()}) is gone; the same command resumes"
    found = read_status(tmp_path)
    assert (found.state, found.why) == ("stale", why)
    ended = subprocess.Popen(["true"])
    ended.wait()
    _claimed(tmp_path, replace(this_process(), pid=ended.pid))  # it was killed
    assert read_status(tmp_path).state == "stale"


ELSEWHERE = Owner(host="node-b", machine="node-b 1", pid=1, started="2")


def test_driver_elsewhere(tmp_path: Path) -> None:
    """It counts up; this machine's clock is not that of the file server."""
    _claimed(_write(tmp_path), ELSEWHERE)
    beat, slept = tmp_path / FOLDER / "000001.beat", []
    pace = Pace(beat_seconds=5.0, missed=9)
    why = "no sign of life of its driver (process 1 on node-b)"
    silent = Driver(name="process 1 on node-b", alive=False, why=why)
    assert driver_of(tmp_path, pace=pace, sleep=slept.append) == silent
    assert sum(slept) == 12.5
    beat.write_text("7")
    assert driver_of(tmp_path, pace=pace, sleep=lambda _: None).alive
    os.utime(beat, (0, 0))
    assert not driver_of(tmp_path, pace=pace, sleep=lambda _: None).alive

    def go_on(_: float) -> None:
        beat.write_text("8")
        os.utime(beat, (0, 0))

    assert driver_of(tmp_path, pace=pace, sleep=go_on).alive


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_jumping_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """Of a driver elsewhere; times are of no clock that can be set."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    _claimed(_write(tmp_path), ELSEWHERE)
    beat, bus = tmp_path / FOLDER / "000001.beat", Bus()
    files = LiveFiles(tmp_path, bus)
    bus.report(Began(engine=0, checkpoint="dense", task="xquad", items=40))
    monkeypatch.setattr(time, "time", lambda: real() - jump)
    bus.report(Advanced(engine=0, items=20))
    files.poll(list)
    counts = itertools.count(8)
    found = read_status(tmp_path, sleep=lambda _: beat.write_text(str(next(counts))))
    assert found.state == "running"
    assert 0 <= found.engines[0].seconds < 3600
    assert 0 < found.seconds_left < 3600 * 120 / 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not a run directory: it has no run.json"),
        ("{", "run.json: Invalid JSON: "),
        ("[]", "run.json: Input should be an object"),
        ('{"planned": 3}', "run.json: planned: Input should be an object"),
        ("\xff", "run.json: Invalid JSON: "),
    ],
)
def test_no_run_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content, encoding="latin-1")
    assert message in refused(read_status, tmp_path)


def test_directory_that_is_being_written(tmp_path: Path) -> None:
    _write(tmp_path, "interrupted")
    (tmp_path / "live.json").write_text("{")
    (tmp_path / "records").write_text("a file")
    found = read_status(tmp_path)
    assert (found.state, found.done, found.total) == ("interrupted", 0, 120)
    (tmp_path / "live.json").unlink()
    os.mkfifo(tmp_path / "live.json")  # which is not waited for
    assert read_status(tmp_path).state == "interrupted"


@pytest.mark.parametrize(
    ("failures", "failed"), [([], 0), ([FAILURE, 3, None], 2), ("none", 0)]
)
def test_damaged_failures_are_left_out(failures, failed) -> None:
    assert _summary(failures=failures).count("failed") == failed


# ---- the command


def _planned(
    run: Path, state: str = "finished", checkpoints: int = 2, **more: Any
) -> Path:
    names = ["dense", *(f"wanda-{number}" for number in range(1, checkpoints))]
    planned = {name: {"xquad": 40} for name in names}
    for name in names[:-1]:
        folder = run / "records" / name / "xquad"
        folder.mkdir(parents=True)
        for first in (0, 20):
            (folder / f"{first:06d}-20.parquet").write_bytes(b"")
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(
        json.dumps({"state": state, "planned": planned} | more)
    )
    return run


def test_command_on_failed_run(tmp_path, monkeypatch, capsys):
    run = _planned(tmp_path / "run", "failed", error="pruning 'wanda-1' failed")
    assert typed(monkeypatch, "status", run) == 0
    said = capsys.readouterr().out
    assert "failed: pruning 'wanda-1' failed" in " ".join(said.split())
    assert "2 checkpoints; tasks: 1 done, 1 waiting" in said
    assert "40 of 80 items" in said
    rows = [line.split() for line in said.splitlines() if "xquad" in line]
    assert rows == [
        ["dense", "xquad", "done", "40", "40"],
        ["wanda-1", "xquad", "waiting", "0", "40"],
    ]
    assert typed(monkeypatch, "status", run, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["done"], told["total"]) == ("failed", 40, 80)
    part = {"checkpoint": "dense", "task": "xquad", "state": "done", "done": 40, "total": 40}  # fmt: skip
    assert told["parts"][0] == part


def test_watch_ends_with_the_run(tmp_path, monkeypatch, capsys):
    run = _planned(tmp_path / "run", "running")
    held = Lease(run)

    monkeypatch.setattr(
        "launch.commands.status.time.sleep", Mock(side_effect=KeyboardInterrupt)
    )
    assert typed(monkeypatch, "status", run, "--watch") == 0
    assert capsys.readouterr().err == ""

    def finish(seconds: float) -> None:
        (run / "run.json").write_text(json.dumps({"state": "finished"}))

    monkeypatch.setattr("launch.commands.status.time.sleep", finish)
    assert typed(monkeypatch, "status", run, "--watch", "--json") == 0
    held.release()
    assert [
        json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()
    ] == ["running", "finished"]


def test_names_cannot_control_the_terminal(tmp_path, monkeypatch, capsys):
    failures = [{"checkpoint": "\x1b]0;t\x07", "stage": "load", "reason": "[bold]"}]
    run = _planned(
        tmp_path / "run", "failed", error="\x1b[2J[red]x[/red]\x07", failures=failures
    )
    assert typed(monkeypatch, "status", run) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "[red]x[/red]" in said
    assert "[bold]" in said


def test_long_runs_are_shortened(tmp_path, monkeypatch, capsys):
    assert (
        typed(monkeypatch, "status", _planned(tmp_path / "run", checkpoints=1000)) == 0
    )
    said = capsys.readouterr().out
    assert "1,000 checkpoints; tasks: 999 done, 1 waiting" in said
    assert "39,960 of 40,000 items" in said
    assert "and 1000 more tasks of checkpoints" in said


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_closed_pipe_is_no_error(tmp_path, options):
    """As in `resurface status RUN | head`, from the first line on."""
    end, pipe = os.pipe()
    os.close(end)
    typed = command("status", _planned(tmp_path / "run"), *options)
    with os.fdopen(pipe, "wb") as output:
        done = subprocess.run(typed, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
