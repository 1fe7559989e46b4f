"""`resurface sweep --watch`, with a pretended engine."""

import itertools
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from launch.commands import call
from launch.sweep import watching
from tests.support.models import save_tiny_model
from tests.support.pretended_engine import pretend
from tests.support.runs import records, typed

SWEEP = """
models: {run: "ckpts/step-*"}
tasks: [{task: gazetteer, items: 2, languages: [english], probes: [greedy]}]
"""


def test_watched_run_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint is asked once. One that vanished stays; STOP ends the watch."""
    run, folder = tmp_path / "run", tmp_path / "ckpts"
    engine, model = pretend(monkeypatch), save_tiny_model(tmp_path / "model")
    later = save_tiny_model(tmp_path / "later", seed=1)

    def second() -> None:
        shutil.rmtree(folder / "step-1")
        shutil.copytree(later, folder / "step-2")

    first = partial(shutil.copytree, model, folder / "step-1")
    assert _watch(tmp_path, monkeypatch, first, second) == 0
    names = ["run-step-1", "run-step-2"]
    assert [row[0] for row in engine.asked] == names
    assert sorted(records(run)["checkpoint"].unique()) == names
    table = pd.read_csv(run / "tables" / "accuracy.csv")
    assert sorted(table["checkpoint"].unique()) == names


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is asked when."""
    done = SimpleNamespace(verdicts=())
    monkeypatch.setattr(call, "finish", lambda *_: done)


def _watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], Any]
) -> int:
    """Watch until nothing is new any more. A step comes once the watch has taken all
    of the one before."""
    file, left, idle = folder / "s.yaml", iter(steps), itertools.cycle((False, True))
    file.write_text(SWEEP, encoding="utf-8")

    def sleep(_: float) -> None:
        if next(idle):
            return
        step = next(left, (folder / "run" / "STOP").touch)
        step()

    clock = SimpleNamespace(sleep=sleep, monotonic=float)
    monkeypatch.setattr(watching, "time", clock)
    return typed(monkeypatch, "sweep", file, "--out", folder / "run", "--watch")


def _failed(run: Path) -> list[str]:
    file = run / "tables" / "failures.csv"
    return list(pd.read_csv(file)["checkpoint"]) if file.exists() else []


@pytest.mark.usefixtures("no_report")
def test_failed_checkpoint_is_tried_once(tmp_path, monkeypatch) -> None:
    """Whether an engine or the checks refuse it. Once it changes, it is new."""
    run, folder, at = tmp_path / "run", tmp_path / "ckpts", []
    engine = pretend(monkeypatch)
    made = {n: save_tiny_model(tmp_path / f"model-{n}", seed=n) for n in range(1, 6)}
    engine.fails = {"run-step-2"}
    torn = folder / "step-3" / "tokenizer.json"

    def come(*numbers: int) -> None:
        at.append(_failed(run))
        for number in numbers:
            shutil.copytree(made[number], folder / f"step-{number}")
        if 3 in numbers:
            torn.unlink()

    def mend() -> None:
        come()
        engine.fails.clear()
        shutil.copy(made[3] / torn.name, torn)
        os.utime(folder / "step-2" / "config.json", ns=(1, 1))

    steps = (partial(come, 1, 2, 3), partial(come, 4), partial(come, 5))
    assert _watch(tmp_path, monkeypatch, *steps) == 3
    refused = ["run-step-3", "run-step-2"]
    assert [sorted(each) for each in at[1:]] == [sorted(refused)] * 2
    asked = [row[0] for row in engine.asked]
    assert asked == [f"run-step-{number}" for number in (1, 2, 4, 5)]
    told = (run / "logs" / "events.jsonl").read_text().count('"gave_up"')
    assert told == len(refused)
    engine.asked.clear()
    assert _watch(tmp_path, monkeypatch, come, mend) == 0
    assert [row[0] for row in engine.asked] == ["run-step-2"] * 2 + ["run-step-3"]
    assert _failed(run) == []


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("early", "code", "names"), [(True, 2, []), (False, 0, ["run-step-2"])]
)
def test_first_one_is_refused(tmp_path, monkeypatch, early, code, names) -> None:
    """At the start, it ends the watch. In the night, others come."""
    engine, model = pretend(monkeypatch), save_tiny_model(tmp_path / "model")

    def torn() -> None:
        shutil.copytree(model, tmp_path / "ckpts" / "step-1")
        (tmp_path / "ckpts" / "step-1" / "tokenizer.json").unlink()

    def come() -> None:
        shutil.copytree(model, tmp_path / "ckpts" / "step-2")

    first = torn
    if early:
        torn()
        first = come
    assert _watch(tmp_path, monkeypatch, first, come) == code
    assert [row[0] for row in engine.asked] == names
