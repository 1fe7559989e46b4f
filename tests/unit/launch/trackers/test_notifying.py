"""The user's command at the first failure of a run and at its end."""

import time
from pathlib import Path

import pytest

from launch.run.decide.assignments import Event
from launch.trackers import notifying
from launch.trackers.notifying import Notifying, command_of
from tests.support.sweeps import refused

TOLD = 'printf "%s|%s|%s\\n" "$RESURFACE_STATE" "$RESURFACE_RUN" "$RESURFACE_MESSAGE" >> told'


@pytest.mark.parametrize(("text", "why"), [("", "empty"), ("sh 'x", "No closing"), ("gone x", "no program 'gone'")])
def test_a_command_that_cannot_run_is_refused(text: str, why: str) -> None:
    assert why in refused(command_of, text).removeprefix(f"--notify: {text!r}: ")


def test_it_runs_at_the_first_failure_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = Notifying(command_of(f"sh -c '{TOLD}'"), Path("run"), pytest.fail)
    for name in ("a", "b"):
        told.on(Event(kind="died", engine=0))
        told.on(Event(kind="gave_up", text=f"{name} does not load:\nno; `x` $HOME"))
    told.end(Event(kind="end", state="finished_with_failures", text="see failures.csv"))
    assert Path("told").read_text().splitlines() == [
        f"failed|{tmp_path / 'run'}|run: failed: a does not load: no; `x` $HOME",
        f"partial|{tmp_path / 'run'}|run: partial: see failures.csv",
    ]


def test_its_failure_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(notifying, "_PATIENCE", 0.5)
    warned: list[str] = []
    for command in ("exit 3", "sleep 600 & echo $! > pid; wait"):
        Notifying(("sh", "-c", command), tmp_path, warned.append).end(Event(kind="end", state="finished"))
    Notifying(("./gone",), tmp_path, warned.append).end(Event(kind="end", state="finished"))
    assert warned[:2] == ["--notify: sh ended with exit code 3", "--notify: sh has no result after 0.5 s"]
    assert "No such file" in warned[2]
    left = Path(f"/proc/{Path('pid').read_text().strip()}/stat")
    while left.exists() and " Z " not in left.read_text():  # its own processes end with it
        time.sleep(0.05)
