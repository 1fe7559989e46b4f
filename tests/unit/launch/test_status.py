"""What a run's files say of how it is getting on, whatever of them is there, and
what `resurface status` prints."""

import io
import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console

from evaluator.core.errors import Json
from evaluator.core.lease import FOLDER, Claim, Lease
from evaluator.core.liveness import Owner, Pace, this_process
from evaluator.store.run_json import Failure
from launch.commands.status import _page
from launch.run.directory.event_log import EventLog
from launch.run.events import (
    Advanced,
    Began,
    Died,
    End,
    Event,
    GaveUp,
    Loaded,
    Made,
    Phase,
    Placed,
    Planned,
    Recorded,
    Started,
    Starting,
)
from launch.run.state import Bus, RunState, advance
from launch.status import (
    Driver,
    LastGate,
    RunDocument,
    driver_of,
    read_status,
    summarise,
)
from tests.support.runs import typed

ALIVE = Driver(name="process 12 on node-b", alive=True)
GONE = replace(ALIVE, alive=False, why="its driver (process 12 on node-b) is gone")
PLANNED = Planned(
    {name: {"xquad": 40, "tydiqa": 20} for name in ("dense", "wanda-0.5")}
)
GAVE_UP = GaveUp(Failure(checkpoint="wanda-0.5", stage="load", reason="no such layer"))
# half of the items of `tydiqa` in five seconds
EVENTS = (
    Started(), PLANNED, Recorded(checkpoint="dense", task="xquad", items=40), Made(items=1, total=2),
    Died(engine=0, text="ActorDiedError"), Placed(engine=0, text="a: 3 (1/2)"),
    Began(engine=0, checkpoint="dense", task="tydiqa", items=20),
    Advanced(engine=0, checkpoint="dense", task="tydiqa", items=10),
)  # fmt: skip
NOW = 1000.0
SECONDS = {"busy_seconds": 2.0, "waiting_seconds": 1.0, "idle_seconds": 1.0}
SERVED = {"engine": 0, "checkpoint": "dense", "device": "cpu", **SECONDS}


def _summary(*more: Event, driver: Driver | None = ALIVE, **document: Any) -> Any:
    """After EVENTS and `more`; `document`: fields of run.json."""
    state = RunState()
    for event in (*EVENTS, *more):
        seconds = 0.0 if isinstance(event, Advanced) else 5.0
        state = advance(state, event, NOW - seconds)
    run = RunDocument.model_validate({"state": "running"} | document)
    return summarise("runs/x", run, state, driver, NOW)


def test_running_run() -> None:
    found = _summary(engine_stats=[SERVED])
    assert (found.state, found.done, found.total) == ("running", 50, 120)
    assert (found.checkpoints, found.count("running")) == (2, 1)
    assert (found.items_per_second, found.seconds_left) == (2.0, 70 / 2.0)
    assert (found.pruned, found.to_prune) == (1, 2)
    (engine,) = found.engines
    assert (engine.state, engine.checkpoint, engine.task) == (
        "evaluating",
        "dense",
        "tydiqa",
    )
    assert (engine.done, engine.seconds, engine.idle_share) == (10, 5.0, 0.25)
    assert found.errors == ("engine 0 died (ActorDiedError)",)


def test_shares_of_an_engine_are_of_its_last_checkpoint() -> None:
    """Of all its tasks: they overlap, and one alone may have counted nothing."""
    before = SERVED | {"checkpoint": "other"}
    rows = [before, SERVED | {"idle_seconds": 0.0}, SERVED | {"busy_seconds": 9.0}]
    nothing = SERVED | dict.fromkeys(SECONDS, 0.0)
    (engine,) = _summary(engine_stats=[*rows, nothing]).engines
    assert (engine.idle_share, engine.waiting_share) == (1 / 14, 2 / 14)
    (engine,) = _summary(engine_stats=[]).engines
    assert (engine.idle_share, engine.waiting_share) == (None, None)


def test_words_of_an_unfinished_run() -> None:
    """Its last verdict is of an earlier call; checkpoints set aside have no items."""
    gone = Failure(checkpoint="broken", stage="load", reason="NaN")
    found = _summary(GaveUp(gone), driver=None, state="interrupted")
    gate = LastGate(verdict="PASS", summary="1 passed")
    console = Console(file=io.StringIO(), width=100)
    console.print(_page(replace(found, gate=gate)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "50 of 120 items, without 1 checkpoint set aside at the start" in shown
    assert "gate (before this call): PASS: 1 passed" in shown


def test_gpu_hours_and_their_cost() -> None:
    gpu = {"checkpoint": "dense", "device": "H100", "gpu": "a: 0", "seconds": 5400.0}
    price = {"resources": {"price_per_gpu_hour": 2}}
    for row, config, told in (
        (gpu, price, "1.50 GPU-hours, cost 3.00"),
        (gpu, {}, "1.50 GPU-hours"),
        (gpu | {"gpu": ""}, price, None),
    ):
        found = _summary(engine_stats=[row], config=config)
        console = Console(file=io.StringIO(), width=100)
        console.print(_page(found))
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert told in shown if told else "GPU-hours" not in shown


@pytest.mark.parametrize(
    ("driver", "state", "shown", "why"),
    [
        (GONE, "running", "stale", "its driver (process 12 on node-b) is gone; the same command resumes"),
        (None, "failed", "failed", "a b"),
    ],
)  # fmt: skip
def test_run_without_a_driver(driver, state, shown, why) -> None:
    """Its engines are shown with what they did last."""
    found = _summary(driver=driver, state=state, error=None if driver else "a\nb")
    assert (found.state, found.why) == (shown, why)
    assert (found.count("running"), found.done, found.seconds_left) == (0, 50, None)
    (engine,) = found.engines
    assert (engine.state, engine.checkpoint) == ("ended", "dense")
    console = Console(file=io.StringIO(), width=100)
    console.print(_page(found))
    assert "a: 3 (1/2)" in console.file.getvalue()


def test_time_left_counts_loads() -> None:
    """One checkpoint waits, then an engine starts too. Failed ones are not waited
    for."""
    loaded = Loaded(engine=0, checkpoint="dense", seconds=30.0)
    assert _summary(loaded).seconds_left == 70 / 2.0 + 30.0
    found = _summary(loaded, Starting(engine=1))
    assert found.seconds_left == 70 / 2.0 + (30.0 + 25.0) / 2
    assert _summary(GAVE_UP).seconds_left == 10 / 2.0


def _write(run: Path, state: str = "running", *events: Event, **more: Json) -> Path:
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"state": state} | more))
    log = EventLog(run)
    bus = Bus(log.on)
    for event in events:
        bus.report(event)
    return run


def _claimed(run: Path, owner: Owner) -> None:
    claim = Claim(**asdict(owner), number=1, token="t")
    (run / FOLDER / "000001-t").mkdir(parents=True)
    (run / FOLDER / "000001.json").write_text(json.dumps(asdict(claim)))


@pytest.mark.parametrize("state", ["finished", "finished_with_failures"])
def test_run_without_its_report_is_not_finished(tmp_path: Path, state: str) -> None:
    """run.json is finished before tables and page; the event `end` comes last."""
    begun = Started(), PLANNED, Phase("writing tables and page")
    _write(tmp_path, state, *begun)
    found = read_status(tmp_path)
    assert (found.state, found.why) == (
        "stale",
        "its driver is gone; the same command resumes",
    )
    held = Lease(tmp_path)
    assert read_status(tmp_path).state == "running"
    held.release()
    ended = _write(tmp_path / "ended", state, *begun, End(state))  # type: ignore[arg-type]
    assert read_status(ended).state == state
    broken = End("failed", "table 't' of a plugin failed", 1)
    failed = read_status(_write(tmp_path / "failed", state, *begun, broken))
    assert (failed.state, failed.why) == ("failed", broken.text)


def test_driver_on_this_machine(tmp_path: Path) -> None:
    assert read_status(_write(tmp_path)).state == "stale"  # nobody has claimed it
    held = Lease(tmp_path)
    assert read_status(tmp_path).state == "running"
    held.release()
    assert read_status(tmp_path).state == "stale"
    ended = subprocess.Popen(["true"])
    ended.wait()
    _claimed(tmp_path, replace(this_process(), pid=ended.pid))  # it was killed
    assert read_status(tmp_path).state == "stale"


ELSEWHERE = Owner(host="node-b", machine="node-b 1", pid=1, started="2")


def test_driver_elsewhere(tmp_path: Path) -> None:
    """It counts up; this machine's clock is not that of the file server."""
    _claimed(_write(tmp_path), ELSEWHERE)
    beat, slept = tmp_path / FOLDER / "000001-t" / "beat", []
    pace = Pace()
    why = "no sign of life of its driver (process 1 on node-b)"
    silent = Driver(name="process 1 on node-b", alive=False, why=why)
    assert driver_of(tmp_path, pace=pace, sleep=slept.append) == silent
    assert sum(slept) == 12.5
    beat.write_text("7")
    os.utime(beat, (0, 0))
    assert not driver_of(tmp_path, pace=pace, sleep=lambda _: None).alive

    def go_on(_: float) -> None:
        beat.write_text("8")
        os.utime(beat, (0, 0))

    assert driver_of(tmp_path, pace=pace, sleep=go_on).alive


@pytest.mark.parametrize("damage", [os.mkfifo, os.mkdir, Path.touch])
def test_log_that_is_none(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    """A pipe is not waited for."""
    run = _write(tmp_path, "interrupted")
    log = run / "logs" / "events.jsonl"
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    damage(log)
    found = read_status(run)
    assert (found.state, found.done, found.total) == ("interrupted", 0, 0)


# ---- the command


def _planned(run: Path, state: str = "failed", checkpoints: int = 2) -> Path:
    """All checkpoints but the last are done."""
    names = ["dense", *(f"wanda-{number}" for number in range(1, checkpoints))]
    done = [Recorded(checkpoint=name, task="xquad", items=40) for name in names[:-1]]
    planned = Planned({name: {"xquad": 40} for name in names})
    hostile = GaveUp(
        Failure(checkpoint="\x1b]0;t\x07", stage="load", reason="[bold]", task="t")
    )
    told = (Started(), planned, *done, hostile, End("failed"))
    return _write(run, state, *told, error="\x1b[2J[red]x[/red]\x07")


def test_command_on_failed_run(tmp_path, monkeypatch, capsys):
    """Names cannot control the terminal."""
    run = _planned(tmp_path / "run")
    assert typed(monkeypatch, "status", run) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("[2J[red]x[/red]", "[bold]"))
    assert not {"\x1b", "\x07"} & {*said}
    assert "tasks: 1 done, 1 failed, 1 waiting" in said
    rows = [line.split() for line in said.splitlines() if "xquad" in line]
    assert rows[0] == ["dense", "xquad", "done", "40", "40"]
    assert typed(monkeypatch, "status", run, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["done"], told["total"]) == ("failed", 40, 80)
    assert told["history"]["counts"]["started"] == 1
    part = {"checkpoint": "dense", "task": "xquad", "state": "done", "done": 40, "total": 40}  # fmt: skip
    assert told["parts"][0] == part


def test_watch_ends_with_the_run(tmp_path, monkeypatch, capsys):
    run = _planned(tmp_path / "run", "running")
    held, sleep = Lease(run), "launch.commands.status.time.sleep"
    monkeypatch.setattr(sleep, Mock(side_effect=KeyboardInterrupt))
    assert typed(monkeypatch, "status", run, "--watch") == 0
    assert capsys.readouterr().err == ""

    def end(_: float) -> None:
        (run / "logs" / "events.jsonl").unlink()
        _write(run, "finished")

    monkeypatch.setattr(sleep, end)
    assert typed(monkeypatch, "status", run, "--watch", "--json") == 0
    held.release()
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["running", "finished"]


def test_long_runs_are_shortened(tmp_path, monkeypatch, capsys):
    run = _planned(tmp_path / "run", checkpoints=1000)
    assert typed(monkeypatch, "status", run) == 0
    said = capsys.readouterr().out
    assert "1,001 checkpoints; tasks: 999 done, 1 failed, 1 waiting" in said
    assert "39,960 of 40,000 items" in said
    assert "and 1000 more tasks of checkpoints" in said
