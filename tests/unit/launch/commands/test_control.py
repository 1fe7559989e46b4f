"""Requests to a run's driver: the files that they leave, and whom they refuse."""

import json
from pathlib import Path

import pytest

from evaluator.core.lease import Lease
from launch.run.directory.lock import PAUSE, STOP, hold
from tests.support.runs import typed


def _run(path: Path, state: str = "running") -> Path:
    (path / "run.json").write_text(json.dumps({"state": state}))
    return path


def test_requests_leave_files(tmp_path, monkeypatch, capsys) -> None:
    run, lease = _run(tmp_path), Lease(tmp_path)
    assert typed(monkeypatch, "resume", run) == 2
    error = f"error: {run}: nothing to resume: the run is not paused\n"
    assert capsys.readouterr().err == error
    assert typed(monkeypatch, "pause", run) == typed(monkeypatch, "pause", run) == 0
    assert (run / PAUSE).exists()
    assert typed(monkeypatch, "resume", run) == 0
    assert not (run / PAUSE).exists()
    assert typed(monkeypatch, "stop", run) == 0
    assert (run / STOP).exists()
    lease.release()


def test_next_call_forgets_requests(tmp_path) -> None:
    for name in (STOP, PAUSE):
        (_run(tmp_path) / name).touch()
    with hold(tmp_path):
        assert not (tmp_path / STOP).exists()
        assert not (tmp_path / PAUSE).exists()


@pytest.mark.parametrize("command", ["stop", "pause", "resume"])
@pytest.mark.parametrize(
    ("state", "why"),
    [("finished", "finished"), ("running", "stale (its driver is gone; the same")],
)
def test_no_driver(tmp_path, monkeypatch, capsys, command, state, why) -> None:
    assert typed(monkeypatch, command, _run(tmp_path, state)) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: {tmp_path}: nothing to {command}: the run is {why}"
    )
    assert error.count("\n") == 1
    assert not (tmp_path / STOP).exists()
    assert not (tmp_path / PAUSE).exists()


def test_no_run(tmp_path, monkeypatch, capsys) -> None:
    assert typed(monkeypatch, "stop", tmp_path) == 2
    assert "not a run directory" in capsys.readouterr().err
