"""What a tracker and the user's command are told of a run."""

import importlib
import json
import math
import sys
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest

from evaluator.store.run_json import Failure
from launch.run.events import Died, End, GaveUp
from launch.trackers import notifying
from launch.trackers.notifying import Notifying, command_of
from launch.trackers.tracking import tracker_of
from tests.support.sweeps import refused
from tests.support.tracker import mlflow

HEADLINE = pd.DataFrame(
    [{"checkpoint": "wanda", "task": "x:y", "n": 3, "drop": math.nan, "known": None}]
)
FOLDERS = ("report", "tables", "records")


@pytest.fixture
def run(tmp_path):
    for name in FOLDERS:
        (tmp_path / "grid" / name).mkdir(parents=True)
        (tmp_path / "grid" / name / "file").write_text("x")
    return tmp_path / "grid"


def test_missing_tracker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown --track 'mlfow'; did you mean 'mlflow'" in refused(
        tracker_of, "mlfow"
    )
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert (
        "--track mlflow: it is not installed: pip install 'resurface[track]'"
        in refused(tracker_of, "mlflow")
    )
    monkeypatch.setattr(
        importlib,
        "import_module",
        Mock(side_effect=AttributeError("module 'x' has no y")),
    )
    assert "--track wandb: cannot be imported: module 'x' has no y" in refused(
        tracker_of, "wandb"
    )


def test_mlflow(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("TRACKED", str(tmp_path / "heard"))
    tracker_of("mlflow")(run, {"seed": 0, "models": "x" * 900}, HEADLINE)
    lines = (tmp_path / "heard").read_text().splitlines()
    heard = [tuple(json.loads(line).values()) for line in lines]
    assert heard == [
        ("set_experiment", "resurface"),
        ("start_run", "grid"),
        ("log_param", "seed", "0"),
        ("log_param", "models", "x" * 500),
        ("log_metric", "wanda/x_y/n", 3.0),
        *(("log_artifacts", ["file"], name) for name in FOLDERS),
        ("end_run",),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [("", "empty"), ("sh 'x", "No closing"), ("gone x", "no program 'gone'")],
)
def test_unusable_command_is_refused(text: str, why: str) -> None:
    assert why in refused(command_of, text).removeprefix(f"--notify: {text!r}: ")


def test_command_runs_at_failure_and_end(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ["STATE", "RUN", "MESSAGE"]
    line = "|".join(f"$RESURFACE_{name}" for name in said)
    told = Notifying(("sh", "-c", f'echo "{line}" >> told'), Path("run"), pytest.fail)
    for name in ("a", "b"):
        told.on(Died(engine=0))
        failure = Failure(checkpoint=name, stage="load", reason="\nno; `x` $HOME")
        told.on(GaveUp(failure))
    told.verdict = "1 of 3 blocked: BLOCK a"
    told.end(End("finished_with_failures", "see failures.csv"))
    run = tmp_path / "run"
    assert Path("told").read_text().splitlines() == [
        f"failed|{run}|run: failed: a cannot be used, and was set aside: no; `x` $HOME",
        f"partial|{run}|run: partial: 1 of 3 blocked: BLOCK a; see failures.csv",
    ]


@pytest.mark.parametrize(
    ("command", "warning"),
    [
        (("sh", "-c", "exit 3"), "--notify: sh ended with exit code 3"),
        (("sh", "-c", "sleep 9 & wait"), "--notify: sh has no result after 0.5 s"),
        (("./gone",), "--notify: [Errno 2] No such file or directory: './gone'"),
    ],
)
def test_failing_command_is_a_warning(tmp_path, monkeypatch, command, warning) -> None:
    monkeypatch.setattr(notifying, "_PATIENCE", 0.5)
    warned: list[str] = []
    Notifying(command, tmp_path, warned.append).end(End("finished"))
    assert warned == [warning]
