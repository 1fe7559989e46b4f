"""A run without its terminal: left, stopped by a file, and resumed."""

import json
import os
import time
from pathlib import Path

import pytest

from evaluator.core.errors import Json
from launch.status import read_status
from tests.support.runs import finish, resurface_apart
from tests.support.schemas import valid

pytestmark = pytest.mark.slow
EVAL = "eval bundled --task gazetteer --languages english --items 4 --probes greedy"


def _leave(run: Path) -> Json:
    """Returns once it is safe to leave."""
    done = resurface_apart(*EVAL.split(), "--engine", "torch", "--detach", "--out", run)
    assert (done.returncode, done.stderr) == (0, "")
    line: Json = valid("detach", done.stdout)
    assert line["run"] == str(run)
    assert os.getsid(line["process"]) == line["process"]  # no terminal reaches it
    return line


def _end(run: Path) -> Json:
    """Waits for it: the last line of the log, which end.json has too."""
    file, last = run / "end.json", ""
    while not file.exists() or file.read_text() != last:
        assert read_status(run).state != "stale"
        last = (run / "logs" / "detached.log").read_text().splitlines()[-1]
        time.sleep(0.2)
    ended: Json = valid("run", last)
    return ended


@pytest.mark.more
def test_left_run_stops_and_resumes(tmp_path) -> None:
    run = tmp_path / "run"
    _leave(run)
    finish("stop", run)
    ended = _end(run)
    assert (ended["state"], ended["exit_code"]) == ("interrupted", 130)
    _leave(run)
    ended = _end(run)
    assert (ended["state"], ended["exit_code"]) == ("finished", 0)
    assert (run / "report" / "index.html").is_file()
    assert read_status(run).done == 4
    assert finish("stop", run, code=2).stderr.endswith("the run is finished\n")


def test_bad_input_is_refused_at_once(tmp_path) -> None:
    words = [*EVAL.split(), "--languages", "klingon", "--detach"]
    done = resurface_apart(*words, "--out", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.more
def test_json_is_the_last_line(tmp_path) -> None:
    words = [*EVAL.split(), "--engine", "torch", "--json", "--out", tmp_path / "run"]
    done = finish(*words)
    ended = valid("run", done.stdout)
    assert (ended["state"], ended["verdicts"]) == ("finished", [])
    assert json.loads((tmp_path / "run" / "end.json").read_text()) == ended
    assert "evaluating" in done.stderr
