"""What a call of `eval` and `sweep` says of its beginning and its end, and what a
terminal is sent of strange texts."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from rich.table import Table

from evaluator.core.errors import InputError, printable
from evaluator.core.lease import Lease
from launch.commands import call
from launch.commands.terminal import SafeConsole, closing, shown
from launch.commands.terminal import printed as spelled
from launch.run.decide.assignments import origin_of
from launch.run.directory.keys import Keys
from launch.run.directory.lock import hold
from launch.run.directory.rundir import open_run
from launch.run.events import Planned
from launch.run.state import RunState
from launch.sweep.config import RECIPES, SweepConfig, load_sweep, rechecking
from launch.sweep.preflight import jobs_here, prepare
from tests.support.schemas import valid
from tests.support.sweeps import refused

COMMAND = "sh -c 'echo $RESURFACE_STATE: $RESURFACE_MESSAGE >> told'"


def _call(
    monkeypatch: pytest.MonkeyPatch,
    run: Path,
    error: BaseException | None,
    *,
    makes: bool = True,
) -> None:
    def work(made: call.Call, _: object) -> None:
        if makes:
            (run / "run.json").write_text("{}")
            made.bus.report(Planned({}))
        if error is not None:
            raise error

    monkeypatch.setattr(call.Call, "run", work)
    monkeypatch.setattr(call, "stop_in_order", lambda: None)
    output = call.Output(run, notify=COMMAND, as_json=True)
    call.run_and_report(load_sweep(RECIPES / "demo.yaml"), output)


def _events(run: Path) -> list[tuple[str, str]]:
    rows = map(json.loads, (run / "logs" / "events.jsonl").read_text().splitlines())
    return [(row["event"], row.get("state", "")) for row in rows]


@pytest.mark.parametrize(
    ("error", "state", "told"),
    [
        (None, "finished", "finished: a/run: finished"),
        (
            typer.Exit(3),
            "finished_with_failures",
            "partial: a/run: partial: tables/failures.csv names what is missing",
        ),
        (
            KeyboardInterrupt(),
            "interrupted",
            "interrupted: a/run: interrupted: the same command resumes",
        ),
        (RuntimeError("no engine"), "failed", "failed: a/run: failed: no engine"),
    ],
)
def test_second_driver_is_refused(
    tmp_path, monkeypatch, error, state, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if error is None:
        _call(monkeypatch, Path("a/run"), None)
    else:
        with pytest.raises(type(error)):
            _call(monkeypatch, Path("a/run"), error)
    ended = valid("run", closing.pop())
    codes = {
        "finished": 0,
        "finished_with_failures": 3,
        "interrupted": 130,
        "failed": 1,
    }
    assert (ended["state"], ended["exit_code"]) == (state, codes[state])
    assert json.loads(Path("a/run/end.json").read_text()) == ended
    metrics = Path("a/run/metrics.prom").read_text()
    assert f'resurface_state{{state="{state}"}} 1' in metrics.splitlines()
    held = Lease(Path("a/run"))
    with pytest.raises(InputError, match="another resurface process"):
        _call(monkeypatch, Path("a/run"), None)
    held.release()
    assert closing == []  # a refused call has no end
    assert Path("told").read_text().splitlines() == [told]
    kinds = [("started", ""), ("planned", ""), ("end", state), ("refused", "")]
    assert _events(Path("a/run")) == kinds


@pytest.mark.parametrize("there", [False, True])
def test_a_refused_call_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    if there:
        Path("a/run").mkdir(parents=True)
    with pytest.raises(InputError, match="no such model"):
        _call(monkeypatch, Path("a/run"), InputError("no such model"), makes=False)
    assert (
        not any(Path("a/run").iterdir())
        if there
        else [each.name for each in Path().iterdir()] == ["told"]
    )


def test_failing_tracker_is_a_warning(capsys) -> None:
    tracker = Mock(side_effect=RuntimeError("no server"))
    made: Any = SimpleNamespace(tracker=tracker, lock=SimpleNamespace(directory="run"))
    results: Any = SimpleNamespace(headline=None)
    call.Call._track(made, load_sweep(RECIPES / "demo.yaml"), results)
    assert tracker.called
    assert "--track: RuntimeError: no server" in capsys.readouterr().out


ESCAPE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\x08\x7f"


def printed(*things, terminal=False, **options):
    written = io.StringIO()
    console = SafeConsole(
        file=written, width=80, force_terminal=terminal, color_system=None
    )
    for thing in things:
        console.print(thing, **options)
    return written.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_no_order_reaches_a_terminal(terminal, soft):
    table = Table(title=ESCAPE)
    table.add_column(ESCAPE)
    table.add_row(ESCAPE)
    text = printed(ESCAPE, table, {"key": ESCAPE}, terminal=terminal, soft_wrap=soft)
    assert "red" in text
    assert not set(text) & set("\x1b\x07\x08\x7f\x9b")


# of direction, ends of lines, and what is invisible
MARKS = "\u200e\u200f\u061c\u202e\u2066\u2028\u2029\u200b\ufeff\u2060\u3164\xad\U000e0041\ud800\x9b"


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x00b", "a?b"),
        ("\u202egpj.exe\u202c", "?gpj.exe?"),
        ("two\nlines", "two\nlines"),
        # joiners that scripts need, and white space that is seen
        (
            "\u0c28\u0c26 \u0928\u200d \u3000\xa0",
            "\u0c28\u0c26 \u0928\u200d \u3000\xa0",
        ),
        *((f"a{mark}b", "a?b") for mark in MARKS),
    ],
)
def test_what_is_shown(text, seen, capsys):
    assert shown(text) == seen
    assert ("\ufffd" in printable(text)) is (text != seen or "\n" in text)
    spelled(text)
    assert not set(MARKS) & set(capsys.readouterr().out)


def test_dry_run_checks_its_directory(tmp_path, capsys):
    settings = {
        "models": {"dense": "bundled"},
        "tasks": [{"task": "gazetteer", "items": 2, "languages": ["english"]}],
        "engine": {"kind": "torch"},
    }
    config = SweepConfig.model_validate(settings)
    jobs, _ = jobs_here(config, tmp_path, {})
    with hold(tmp_path) as lock:
        prepared = prepare(config, tmp_path, jobs)
        directory, keys = open_run(prepared, tmp_path, lock), Keys(prepared)
        directory.write(RunState())
        (job,), (task,) = prepared.jobs, prepared.tasks
        origin = origin_of(prepared.dense["dense"], None)
        directory.cells.put(
            origin, task.name, keys.key(job, task), keys.words(job, task)
        )
        directory.cells.save()
    output = call.Output(tmp_path)

    def dry_run(config: SweepConfig) -> str:
        call.start(config, output, dry_run=True)
        return " ".join(capsys.readouterr().out.split())

    other = {**settings, "tasks": [{**settings["tasks"][0], "max_new_tokens": 9}]}
    for each in (settings, other):  # there are no earlier records
        assert "evaluated again" not in dry_run(SweepConfig.model_validate(each))
    (tmp_path / "records" / keys.key(job, task)).mkdir()
    before = sorted(tmp_path.rglob("*"))
    told = dry_run(rechecking(config))
    only = "only cut answers are posed again, and what reads them; the earlier records"
    assert f"task.settings.recheck_cut is null there, true here: {only} stay" in told
    told = dry_run(SweepConfig.model_validate(other))
    changed = "dense, task gazetteer: task.settings.max_new_tokens is 32 there, 9 here"
    assert f"{changed}: evaluated again; the earlier records stay" in told
    assert sorted(tmp_path.rglob("*")) == before


def test_dry_run_names_what_would_be_set_aside(tmp_path, capsys):
    """With the run's exit code; `strict` refuses it as the run would."""
    (tmp_path / "q4.gguf").write_bytes(b"no")
    settings = {
        "models": {"dense": "bundled", "q4": str(tmp_path / "q4.gguf")},
        "compress": [
            {"checkpoint": str(tmp_path / "gone"), "label": "gone", "base": "dense"}
        ],
        "tasks": [{"task": "gazetteer", "items": 2, "languages": ["english"]}],
        "engine": {"kind": "torch"},
    }
    config = SweepConfig.model_validate(settings)
    with pytest.raises(typer.Exit) as ended:
        call.start(config, call.Output(None), dry_run=True)
    assert ended.value.exit_code == 3
    written = capsys.readouterr().out
    for named in (f"q4: {tmp_path}/q4.gguf: ", "gone: checkpoint "):
        assert f"would be set aside: {named}" in written
    strict = call.Output(None, strict=True)
    assert "gone: checkpoint " in refused(call.start, config, strict, dry_run=True)
    config = config.model_copy(update={"compress": ()})
    assert "q4.gguf: " in refused(call.start, config, strict, dry_run=True)
