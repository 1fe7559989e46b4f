"""When engines start beside prune jobs: on GPUs that no job needs, and on CPUs at once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.run import driver
from launch.run.nodes import FreeGpus, Node
from launch.run.work import EngineSetup
from launch.sweep.config import Resources


class Pruning:
    """Takes the place of the prune tasks: a job ends when the driver has looked twice."""

    def __init__(self, jobs: list[str], *, free: FreeGpus | None, **_: object) -> None:
        self._waiting, self._running, self._free = list(jobs), [], free

    def given_up(self) -> list[object]:
        return []

    @property
    def left(self) -> int:
        return len(self._waiting) + len(self._running)

    def start(self) -> None:
        while self._waiting and (self._free is None or (node_id := self._free.take_one()) is not None):
            job = self._waiting.pop(0)
            self._running.append((job, None if self._free is None else node_id, iter(range(1))))
            EVENTS.append(f"prune {job}")

    def done(self, seconds: float) -> list[str]:
        job, node_id, looks = self._running[0]
        if next(looks, None) is not None:
            return []
        self._running.pop(0)
        if self._free is not None and node_id is not None:
            self._free.give_back(node_id)
        EVENTS.append(f"pruned {job}")
        return [job]


class Worker:
    """Takes the place of an engine's worker."""

    failure = retired = None

    def __init__(self, number: int, setup: EngineSetup, **_: object) -> None:
        self.number, self.place, self.stats, self._left = number, setup.place, {}, 2

    def start(self) -> None:
        EVENTS.append(f"engine on {self.place.node_id}")

    def is_alive(self) -> bool:
        return self._left > 0

    def join(self, timeout: float) -> None:
        self._left -= 1


EVENTS: list[str] = []


def _events(monkeypatch: pytest.MonkeyPatch, jobs: list[str], gpus: dict[str, int], tensor_parallel: int = 1) -> str:
    """What happened, in order, in a run with prune `jobs` on nodes with so many `gpus`."""
    EVENTS.clear()
    for name, fake in (("PruneTasks", Pruning), ("EngineWorker", Worker), ("ray", SimpleNamespace(put=lambda it: it))):
        monkeypatch.setattr(driver, name, fake)
    unheard = SimpleNamespace(look=lambda stats: None, pruning=lambda *_: None)
    monkeypatch.setattr(driver, "LiveState", lambda run_dir, ended: unheard)
    resources = Resources()
    config = SimpleNamespace(engine=SimpleNamespace(tensor_parallel=tensor_parallel), resources=resources)
    prepared = SimpleNamespace(config=config, tasks=(), engine=None, held_out={})
    progress = SimpleNamespace(pruning=lambda *_: None)
    log = SimpleNamespace(look=lambda *_: None)
    run = driver._Run(prepared, SimpleNamespace(path=Path("run"), check=lambda: None), None, progress, log)
    monkeypatch.setattr(run, "_add", lambda job, expected: None)
    nodes = [Node(node_id=name, name=name, cpus=2, gpus=count) for name, count in gpus.items()]
    run._on(SimpleNamespace(nodes=lambda: nodes, check=lambda: None), jobs)
    return ", ".join(EVENTS)


def test_one_gpu_prunes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = _events(monkeypatch, ["x", "y"], {"a": 1})
    assert happened == "prune x, pruned x, prune y, pruned y, engine on a"


def test_as_many_jobs_as_gpus_and_engines_where_none_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = _events(monkeypatch, ["x"], {"a": 2, "b": 1})
    assert happened == "prune x, engine on a, engine on a, pruned x, engine on b"
    happened = _events(monkeypatch, ["x", "y", "z"], {"a": 2})
    assert happened == "prune x, prune y, pruned x, prune z, pruned y, engine on a, pruned z, engine on a"


def test_an_engine_of_two_gpus_waits_for_two_on_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    happened = _events(monkeypatch, ["x", "y"], {"a": 2, "b": 2}, tensor_parallel=2)
    assert happened == "prune x, prune y, engine on b, pruned x, pruned y, engine on a"


def test_on_cpus_both_go_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _events(monkeypatch, ["x"], {"a": 0, "b": 0}) == "prune x, engine on a, engine on b, pruned x"
