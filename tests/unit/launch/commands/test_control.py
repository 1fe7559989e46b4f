"""The request that a run stops: its file, and whom it refuses; and who holds a run."""

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from evaluator.core.errors import InputError
from evaluator.core.lease import Lease
from launch.run.directory.lock import STOP, hold
from tests.support.runs import typed


def _run(path: Path, state: str = "running") -> Path:
    (path / "run.json").write_text(json.dumps({"state": state}))
    return path


def test_request_lasts_until_the_next_call(tmp_path, monkeypatch) -> None:
    run, lease = _run(tmp_path), Lease(tmp_path)
    assert typed(monkeypatch, "stop", run) == typed(monkeypatch, "stop", run) == 0
    assert (run / STOP).exists()
    lease.release()
    with hold(run):
        assert not (run / STOP).exists()


@pytest.mark.parametrize(
    ("state", "why"),
    [("finished", "finished"), ("running", "stale (its driver is gone; the same")],
)
def test_no_driver(tmp_path, monkeypatch, capsys, state, why) -> None:
    assert typed(monkeypatch, "stop", _run(tmp_path, state)) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {tmp_path}: nothing to stop: the run is {why}")
    assert error.count("\n") == 1
    assert not (tmp_path / STOP).exists()


def test_no_run(tmp_path, monkeypatch, capsys) -> None:
    assert typed(monkeypatch, "stop", tmp_path) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_who_holds_a_run_can_take_it_over(tmp_path, monkeypatch) -> None:
    held, run = Mock(side_effect=InputError("held")), _run(tmp_path)
    (run / "records").mkdir()
    for module in ("commands.call", "commands.status", "run.directory.lock"):
        monkeypatch.setattr(f"launch.{module}.hold", held)
    out = ("--out", tmp_path / "new")
    for command in (
        ("eval", "bundled", "--task", "gazetteer", "--engine", "torch", *out),
        ("sweep", "demo", *out),
        ("clean", run),
        ("match", run, "--matcher", "bundled", "--engine", "torch"),
    ):
        for more in ((), ("--take-over",)):
            assert typed(monkeypatch, *command, *more) == 2
    asked = [call.kwargs["take_over"] for call in held.call_args_list]
    assert asked == [False, True] * 4
