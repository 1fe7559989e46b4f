"""What a prune job's process does, without Ray."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluator.core.lease import Held
from launch.run.work import actors


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stays as it is when it becomes an engine's."""
    monkeypatch.setattr(actors, "_log_to", lambda path: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("VLLM_LOGGING_LEVEL", None)


@pytest.mark.usefixtures("process")
def test_job_waits_for_another_process(monkeypatch, tmp_path: Path, capsys) -> None:
    """Of a node that is out of reach: that process writes the same checkpoint."""
    slept: list[float] = []

    def prune(*_: object, **__: object) -> None:
        if len(slept) < 2:
            raise Held("process 7 on node-b writes it")

    monkeypatch.setattr(actors, "showing_life", contextlib.nullcontext)
    monkeypatch.setattr("pruning.run.prune", prune)
    monkeypatch.setattr(actors, "time", SimpleNamespace(sleep=slept.append))
    actors.make_checkpoint(
        SimpleNamespace(), tmp_path, None, {}, {}, tmp_path / "log", tmp_path / "pulse"
    )
    assert slept == [2.0, 2.0]
    assert capsys.readouterr().out == 2 * "waiting: process 7 on node-b writes it\n"
