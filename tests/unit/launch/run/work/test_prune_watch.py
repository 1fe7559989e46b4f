"""What a prune task's process says of itself, and what the driver reads."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluator.core.liveness import HEARTBEAT, Hung
from launch.run.work import actors
from launch.run.work.actors import showing_life
from launch.run.work.prune_tasks import TaskWatch


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: "0f")
    monkeypatch.setattr(actors, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    monkeypatch.setattr(actors, "_BEAT_SECONDS", 0.001)


@pytest.mark.usefixtures("quick")
def test_the_driver_sees_that_work_gets_on_and_which_process_does_it(tmp_path: Path) -> None:
    path = tmp_path / "prune-x.pulse"
    path.write_text("of a process that was killed", encoding="utf-8")
    watch = TaskWatch(path, load_seconds=100, stall_seconds=10)
    assert not path.exists()
    watch.check(5000.0)
    with showing_life(path):
        while watch.where is None:
            watch.check(6000.0)
            time.sleep(0.001)
        assert (watch.where.pid, watch.where.node_id) == (os.getpid(), "0f")
        for step in range(3):
            before = watch.beats
            HEARTBEAT.beat()
            while watch.beats == before:
                watch.check(6000.0 + step)
                time.sleep(0.001)
        watch.check(6012.0)
        with pytest.raises(Hung, match="for 11 s"):
            watch.check(6013.0)
    assert not path.exists()


@pytest.mark.usefixtures("quick")
def test_where_it_cannot_be_written_the_work_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "prune-x.pulse"
    watch = TaskWatch(path, load_seconds=100, stall_seconds=10)
    with showing_life(path):
        HEARTBEAT.beat()
        watch.check(1e9)
    assert watch.where is None
