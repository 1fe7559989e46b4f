"""What a call of `eval` and `sweep` says of its beginning and its end, whatever happens in between."""

import json
from pathlib import Path

import pytest
import typer

from evaluator.core.errors import InputError
from launch.commands import running
from launch.run.directory.events import EventLog
from launch.run.directory.lock import RunLock
from launch.sweep.config import RECIPES, load_sweep

COMMAND = "sh -c 'echo $RESURFACE_STATE: $RESURFACE_MESSAGE >> told'"


def _call(monkeypatch: pytest.MonkeyPatch, run: Path, error: BaseException | None, *, makes: bool = True) -> None:
    def work(config: object, lock: object, log: EventLog, *_: object) -> None:
        if makes:
            (run / "run.json").write_text("{}")
        log.accepted = makes
        if error is not None:
            raise error

    monkeypatch.setattr(running, "_run", work)
    monkeypatch.setattr(running, "stop_in_order", lambda: None)
    running.run_and_report(load_sweep(RECIPES / "demo.yaml"), run, notify=COMMAND)


def _events(run: Path) -> list[tuple[str, str]]:
    rows = map(json.loads, (run / "logs" / "events.jsonl").read_text().splitlines())
    return [(row["event"], row.get("state", "")) for row in rows]


@pytest.mark.parametrize(
    ("error", "state", "told"),
    [
        (None, "finished", "finished: a/run: finished"),
        (typer.Exit(3), "finished_with_failures", "partial: a/run: partial: tables/failures.csv names what is missing"),
        (KeyboardInterrupt(), "interrupted", "interrupted: a/run: interrupted: the same command resumes"),
        (SystemExit(15), "interrupted", "interrupted: a/run: interrupted: the same command resumes"),
        (RuntimeError("no engine"), "failed", "failed: a/run: failed: no engine"),
    ],
)
def test_the_end_is_told_and_a_second_driver_is_refused(tmp_path, monkeypatch, error, state, told: str) -> None:
    monkeypatch.chdir(tmp_path)
    if error is None:
        _call(monkeypatch, Path("a/run"), None)
    else:
        with pytest.raises(type(error)):
            _call(monkeypatch, Path("a/run"), error)
    held = RunLock(Path("a/run"))
    with pytest.raises(InputError, match="another resurface process"):
        _call(monkeypatch, Path("a/run"), None)
    held.release()
    assert Path("told").read_text().splitlines() == [told]
    assert _events(Path("a/run")) == [("started", ""), ("end", state), ("refused", "")]


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_call_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if there:
        Path("a/run").mkdir(parents=True)
    with pytest.raises(InputError, match="no such model"):
        _call(monkeypatch, Path("a/run"), InputError("no such model"), makes=False)
    assert not any(Path("a/run").iterdir()) if there else [each.name for each in Path().iterdir()] == ["told"]
