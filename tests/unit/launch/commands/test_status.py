"""`resurface status` as typed: what it prints, and of which runs it speaks."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from launch.run.directory.lock import RunLock
from tests.support.commands import typed
from tests.support.runs import command


def write(run: Path, state: str = "finished", checkpoints: int = 2, **more: Any) -> Path:
    names = ["dense", *(f"wanda-{number}" for number in range(1, checkpoints))]
    planned = {name: {"xquad": 40} for name in names}
    for name in names[:-1]:
        folder = run / "records" / name / "xquad"
        folder.mkdir(parents=True)
        for first in (0, 20):
            (folder / f"{first:06d}-20.parquet").write_bytes(b"")
    run.mkdir(exist_ok=True)
    (run / "run.json").write_text(json.dumps({"state": state, "planned": planned} | more))
    return run


def test_a_run_that_failed(tmp_path, monkeypatch, capsys):
    assert typed(monkeypatch, "status", write(tmp_path / "run", "failed", error="pruning 'wanda-1' failed")) == 0
    said = capsys.readouterr().out
    assert "run: failed: pruning 'wanda-1' failed" in said.replace("\n", "")
    assert "2 checkpoints; tasks: 1 done, 1 waiting" in said
    assert "40 of 80 items" in said
    rows = [line.split() for line in said.splitlines() if "xquad" in line]
    assert rows == [["dense", "xquad", "done", "40", "40"], ["wanda-1", "xquad", "waiting", "0", "40"]]
    assert typed(monkeypatch, "status", tmp_path / "run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["done"], told["total"], told["engines"]) == ("failed", 40, 80, [])
    assert told["parts"][0] == {"checkpoint": "dense", "task": "xquad", "state": "done", "done": 40, "total": 40}


def test_watching_ends_with_the_run_or_in_order_by_ctrl_c(tmp_path, monkeypatch, capsys):
    run = write(tmp_path / "run", "running")
    held = RunLock(run)

    monkeypatch.setattr("launch.commands.status.time.sleep", Mock(side_effect=KeyboardInterrupt))
    assert typed(monkeypatch, "status", run, "--watch") == 0
    assert capsys.readouterr().err == ""

    def finish(seconds: float) -> None:
        write(tmp_path / "other", "finished")
        (run / "run.json").write_text((tmp_path / "other" / "run.json").read_text())

    monkeypatch.setattr("launch.commands.status.time.sleep", finish)
    assert typed(monkeypatch, "status", run, "--watch", "--json") == 0
    held.release()
    assert [json.loads(line)["state"] for line in capsys.readouterr().out.splitlines()] == ["running", "finished"]


def test_names_and_errors_cannot_write_to_the_terminal(tmp_path, monkeypatch, capsys):
    run = write(tmp_path / "run", "failed", error="\x1b[2J[red]x[/red]\x07")
    (run / "tables").mkdir()
    (run / "tables" / "failures.csv").write_text("checkpoint,stage,task,item,reason\n\x1b]0;t\x07,load,,,[bold]\n")
    assert typed(monkeypatch, "status", run) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x07" not in said
    assert "[red]x[/red]" in said
    assert "[bold]" in said


def test_of_a_thousand_checkpoints_those_that_need_a_look_are_shown(tmp_path, monkeypatch, capsys):
    assert typed(monkeypatch, "status", write(tmp_path / "run", checkpoints=1000)) == 0
    said = capsys.readouterr().out
    assert "1000 checkpoints; tasks: 999 done, 1 waiting" in said
    assert "39960 of 40000 items" in said
    assert "and 1000 more tasks of checkpoints" in said


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_it_ends_well_when_nobody_reads_on(tmp_path, options):
    """As in `resurface status RUN | head`, from the first line on."""
    end, pipe = os.pipe()
    os.close(end)
    typed = command("status", write(tmp_path / "run"), *options)
    with os.fdopen(pipe, "wb") as output:
        done = subprocess.run(typed, stdout=output, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
