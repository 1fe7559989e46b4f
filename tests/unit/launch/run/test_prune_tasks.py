"""Prune jobs that wait for GPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.run import prune_tasks
from launch.run.nodes import FreeGpus
from launch.run.prune_tasks import PruneTasks


def test_while_none_runs_the_driver_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray answers at once where there is nothing to wait for."""
    slept: list[float] = []
    fake = SimpleNamespace(
        remote=lambda **_: lambda function: function, put=lambda it: it, wait=lambda *_, **__: ([], [])
    )
    monkeypatch.setattr(prune_tasks, "ray", fake)
    monkeypatch.setattr(prune_tasks, "time", SimpleNamespace(sleep=slept.append))
    tasks = PruneTasks(
        [SimpleNamespace(name="x", after=None)],
        log_path=Path("log"),
        held_out={},
        free=FreeGpus([]),
        attempts=3,
    )
    tasks.start()
    assert tasks.short
    assert not tasks.running
    assert tasks.done(0.2) == []
    assert slept == [0.2]
