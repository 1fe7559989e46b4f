"""What a tracker and the user's command are told of a run, and when; by trackers
that keep what they hear."""

import importlib
import json
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest

from evaluator import report
from evaluator.store.run_json import Failure
from launch.run.events import Died, End, Ended, GaveUp, Planned, Recorded
from launch.run.state import RunState, advance
from launch.trackers import notifying, tracking
from launch.trackers.notifying import Notifying, command_of
from launch.trackers.tracking import (
    Tracked,
    Tracking,
    flattened,
    numbers_of,
    tracker_of,
)
from tests.support.sweeps import refused
from tests.support.synthetic import write_run
from tests.support.tracker.mlflow import MlflowClient

CHECKPOINTS = ("dense", "wanda-0.6")


def _state(**done: int) -> RunState:
    """Of a run that evaluates six items on each checkpoint."""
    planned = Planned({name: {"xquad": 6} for name in done})
    state = advance(RunState(), planned, 0.0)
    for name, items in done.items():
        recorded = Recorded(checkpoint=name, task="xquad", items=items)
        state = advance(state, recorded, 0.0)
    return state


def test_checkpoint_ends_with_its_base(tmp_path: Path) -> None:
    bases = {"dense": None, "sparse": "dense", "other": "not asked"}
    checkpoints = [
        Tracked(name=name, base=base, parameters={}) for name, base in bases.items()
    ]
    tracking = Tracking(Diary(), tmp_path, checkpoints, {}, pytest.fail)
    assert tracking._ended() == []
    for dense, ended in ((5, ["other"]), (6, ["dense", "sparse", "other"])):
        tracking.on(Ended(engine=0), _state(dense=dense, sparse=6, other=6))
        assert [each.name for each in tracking._ended()] == ended
    tracking._folder.cleanup()


def test_settings_and_numbers_are_flat() -> None:
    document = {"a": {"b": 1, "c": {"d": "x"}}, "e": [1, "y"], "f": None, "g": True}
    assert flattened(document) == {
        "a.b": "1",
        "a.c.d": "x",
        "e": '[1, "y"]',
        "g": "true",
    }
    row = {
        "task": "xquad",
        "checkpoint": "dense",
        "n": 3,
        "kept": float("nan"),
        "open": 41.5,
        "flag": True,
    }
    assert numbers_of([row]) == {"xquad/n": 3.0, "xquad/open": 41.5}


class Diary:
    name = "diary"

    def __init__(self, fails_with: str = "") -> None:
        self.heard: list[Any] = []
        self.numbers: dict[str, Any] = {}
        self.files: dict[str, set[str]] = {}
        self._fails_with = fails_with

    def begin(self, run: str, known: str | None, parameters: Any) -> str:
        self.heard.append(("begin", run, known, dict(parameters)))
        return known or "id of the run"

    def checkpoint(
        self, parent: str, name: str, parameters: Any, numbers: Any, folder: Path
    ) -> str:
        if name == self._fails_with:
            raise ConnectionError("the server is away")
        self.heard.append((parent, name, dict(parameters)))
        self.numbers[name] = numbers
        self.files[name] = {
            file.relative_to(folder).as_posix() for file in folder.rglob("*.*")
        }
        return f"id of {name}"

    def end(self, run: str, files: Any, finished: bool) -> None:
        self.heard.append(("end", run, [file.name for file in files], finished))


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is computed, for tests of what is told when."""
    headline = pd.DataFrame({"task": ["xquad"], "checkpoint": ["dense"], "n": [6]})
    monkeypatch.setattr(
        report, "write_part", lambda *_: SimpleNamespace(headline=headline)
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished one."""
    return write_run(tmp_path / "run", 6, CHECKPOINTS, languages=("english",))


def _task(run: Path) -> str:
    return next(path.name for path in (run / "records" / "dense").iterdir())


def _follow(run: Path, diary: Diary, finished: bool = True) -> list[str]:
    warnings: list[str] = []
    bases = {"dense": None, "wanda-0.6": "dense", "missing": "dense"}
    checkpoints = [
        Tracked(name=name, base=base, parameters={"model": "m"})
        for name, base in bases.items()
    ]
    with Tracking(diary, run, checkpoints, {"seed": "0"}, warnings.append) as tracking:
        state = _state(**{"dense": 6, "wanda-0.6": 6, "missing": 0})
        tracking.on(Ended(engine=0), state)
        tracking.results = [run / "report" / "index.html"] if finished else None
    return warnings


@pytest.mark.slow
def test_checkpoint_is_sent_once(run: Path) -> None:
    first = Diary()
    assert _follow(run, first, finished=False) == []
    assert first.heard == [
        ("begin", "run", None, {"seed": "0"}),
        ("id of the run", "dense", {"model": "m"}),
        ("id of the run", "wanda-0.6", {"model": "m"}),
        ("end", "id of the run", [], False),
    ]
    assert first.numbers["wanda-0.6"][f"{_task(run)}/n"] > 0
    assert first.numbers["wanda-0.6"] != first.numbers["dense"]
    assert {
        "tables/headline.csv",
        "tables/fates.csv",
        "figures/fates.svg",
    } <= first.files["wanda-0.6"]

    again = Diary()
    assert _follow(run, again) == []
    assert again.heard == [
        ("begin", "run", "id of the run", {"seed": "0"}),
        ("end", "id of the run", ["index.html"], True),
    ]


@pytest.mark.usefixtures("unmeasured")
def test_absent_server_ends_nothing(run: Path) -> None:
    """What was not sent is sent by the next call; the ids of other trackers stay."""
    theirs = {"run": "theirs", "checkpoints": {}}
    (run / "tracking.json").write_text(json.dumps({"other": theirs}))
    first = Diary(fails_with="dense")
    warning = "--track diary: ConnectionError: the server is away; the run continues"
    assert _follow(run, first) == [warning]
    again = Diary()
    assert _follow(run, again) == []
    for diary, sent in ((first, ["wanda-0.6"]), (again, ["dense"])):
        assert [each[1] for each in diary.heard if each[0] == "id of the run"] == sent
    ids = {name: f"id of {name}" for name in CHECKPOINTS}
    assert json.loads((run / "tracking.json").read_text()) == {
        "other": theirs,
        "diary": {"run": "id of the run", "checkpoints": ids},
    }


@pytest.mark.usefixtures("unmeasured")
def test_tracker_that_cannot_begin(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "tracking.json").write_text("{")
    diary = Diary()
    refusal = Mock(side_effect=PermissionError("log in first"))
    monkeypatch.setattr(diary, "begin", refusal)
    assert _follow(run, diary) == [
        "--track diary: PermissionError: log in first; the run continues"
    ]
    assert diary.heard == []


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize("silent", ["begin", "checkpoint", "end"])
def test_silent_tracker_delays_nobody(
    run: Path, monkeypatch: pytest.MonkeyPatch, silent: str
) -> None:
    diary, answered = Diary(), threading.Event()
    # an error too late to be told
    monkeypatch.setattr(diary, silent, lambda *_: answered.wait() and 1 / 0)
    monkeypatch.setattr(tracking, "_PATIENCE", 0.3)
    monkeypatch.setattr(tempfile, "tempdir", str(run.parent))
    warnings = _follow(run, diary)
    assert not list(run.parent.glob("resurface-*"))  # nothing stays
    thread = next(each for each in threading.enumerate() if each.name == "tracking")
    answered.set()
    thread.join()
    assert warnings == [
        "--track diary: no answer in 0.3 s; the same command sends what is left"
    ]


def test_missing_tracker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown --track 'mlfow'; did you mean 'mlflow'" in refused(
        tracker_of, "mlfow"
    )
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert "--track mlflow: it is not installed: pip install mlflow" in refused(
        tracker_of, "mlflow"
    )
    monkeypatch.setattr(
        importlib,
        "import_module",
        Mock(side_effect=AttributeError("module 'x' has no y")),
    )
    assert "--track wandb: cannot be imported: module 'x' has no y" in refused(
        tracker_of, "wandb"
    )


def test_mlflow(run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(
        sys.modules, "mlflow", SimpleNamespace(MlflowClient=MlflowClient)
    )
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *_: None)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.setenv("TRACKED", str(tmp_path / "heard"))
    tracker = tracker_of("mlflow")
    parent = tracker.begin("grid", None, {"seed": "0", "a?b": "x" * 900})
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "headline.csv").write_text("x")
    child = tracker.checkpoint(
        parent, "wanda-0.6", {"model": "m"}, {"xquad:x/n": 3.0}, tmp_path / "made"
    )
    tracker.end(parent, [run / "report" / "index.html"], finished=True)
    again = tracker_of("mlflow")
    assert again.begin("grid", parent, {"seed": "0"}) == parent
    again.end(parent, [], finished=False)
    heard = [
        tuple(json.loads(line).values())
        for line in (tmp_path / "heard").read_text().splitlines()
    ]
    assert (parent, child) == ("1", "2")
    assert heard == [
        ("create_run", "1", "new resurface", "grid", {}),
        ("log_param", "1", "seed", "0"),
        ("log_param", "1", "a_b", "x" * 500),
        ("create_run", "2", "new resurface", "wanda-0.6", {"mlflow.parentRunId": "1"}),
        ("log_param", "2", "model", "m"),
        ("log_metric", "2", "xquad_x/n", 3.0),
        ("log_artifacts", "2", ["headline.csv"]),
        ("set_terminated", "2", "FINISHED"),
        ("log_artifact", "1", "index.html", "report"),
        ("set_terminated", "1", "FINISHED"),
        ("update_run", "1", "RUNNING"),
        ("set_terminated", "1", "FAILED"),
    ]


def test_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, heard = [], []

    def init(**settings: Any) -> Any:
        begun.append(settings)
        finish, log_artifact = (
            lambda exit_code: heard.append(exit_code),
            lambda artifact: heard.append(artifact.added),
        )
        return SimpleNamespace(
            log=heard.append, log_artifact=log_artifact, finish=finish
        )

    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            self.added = [name]

        def add_dir(self, path: str) -> None:
            self.added.append(Path(path).name)

        add_file = add_dir

    monkeypatch.setitem(
        sys.modules,
        "wandb",
        SimpleNamespace(init=init, Artifact=Artifact, Settings=dict),
    )
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    tracker = tracker_of("wandb")
    parent = tracker.begin("grid", None, {"seed": "0"})
    child = tracker.checkpoint(
        parent, "wanda-0.6", {"model": "m"}, {"xquad/n": 3.0}, tmp_path
    )
    (tmp_path / "index.html").write_text("x")
    tracker.end(parent, [tmp_path / "index.html"], finished=False)
    assert child == f"{parent}-wanda-0-6"
    assert tracker.begin("grid", parent, {}) == parent
    common = {
        "project": "mine",
        "group": "grid",
        "resume": "allow",
        "settings": {"silent": True},
    }
    assert begun == [
        common | {"id": child, "name": "wanda-0.6", "config": {"model": "m"}},
        common | {"id": parent, "name": "grid", "config": {"seed": "0"}},
    ]
    files = [f"{child}-files", tmp_path.name], [f"{parent}-files", "index.html"]
    assert heard == [{"xquad/n": 3.0}, files[0], 0, files[1], 1]


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
        f"failed|{run}|run: failed: a does not load, and was set aside: no; `x` $HOME",
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
