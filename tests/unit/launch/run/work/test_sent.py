"""What the driver sends to other processes: every path in it is absolute, since they are in other directories."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from evaluator.store.records import RecordStore
from launch.run.decide.nodes import FreeGpus, Node, Place, prune_options
from launch.run.directory.metrics import Plan
from launch.run.work import driver, prune_tasks
from launch.run.work.prune_tasks import PruneTasks
from launch.sweep.config import Resources, load_sweep
from launch.sweep.preflight import Inspections, prepare
from tests.support import pruning as tiny
from tests.support.models import save_tiny_model


class Sent:
    """Takes Ray's place and keeps what it is given."""

    def __init__(self) -> None:
        self.arguments: list[object] = []

    def remote(self, **_: object) -> Any:
        return lambda function: SimpleNamespace(remote=self.put, options=lambda **_: SimpleNamespace(remote=self.put))

    def put(self, *arguments: object) -> object:
        self.arguments += arguments
        return object()


def _paths(value: object) -> Iterator[Path]:
    """Every path in what is sent, at any depth."""
    if isinstance(value, BaseModel):
        value = [*(getattr(value, name) for name in type(value).model_fields), *getattr(value, "files", ())]
    elif dataclasses.is_dataclass(value):
        value = [getattr(value, each.name) for each in dataclasses.fields(value)]
    elif isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Path):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _paths(part)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> driver._Run:
    """A run of which everything is named relative to the current directory."""
    monkeypatch.chdir(tmp_path)
    save_tiny_model(Path("model"))
    Path("text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    document = {
        "models": {"dense": "model"},
        "prune": [{"method": "wanda", "sparsity": 0.5}],
        "calibration": {"source": "text:text.txt", "samples": 8, "sequence_length": 32},
        "tasks": [{"task": "gazetteer", "items": 2, "languages": ["english"]}],
    }
    Path("sweep.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    prepared = prepare(load_sweep(Path("sweep.yaml")), Path("run"))
    directory = SimpleNamespace(path=Path("run"), check=lambda: None)
    return driver._Run(
        prepared, directory, RecordStore(Path("run")), print, SimpleNamespace(), SimpleNamespace(plan=Plan())
    )


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_prune_task(run: driver._Run, gpus: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent = Sent()
    monkeypatch.setattr(prune_tasks, "ray", sent)
    to_prune = [job for job in run._prepared.jobs if job.prune is not None]
    free = FreeGpus([Node(node_id="0f" * 28, name="n", cpus=1, gpus=gpus)]) if gpus else None
    logs, held_out, resources = Path("run/logs"), run._prepared.held_out, Resources()
    given = {"free": free, "options": prune_options(gpu=bool(gpus)), "resources": resources}
    tasks = PruneTasks(to_prune, log_dir=logs, held_out=held_out, report=print, **given)
    tasks.start(1)
    found = set(_paths(sent.arguments))
    assert {tmp_path / "model", tmp_path / "text.txt", tmp_path / "run" / "checkpoints" / "wanda-0.5"} <= found
    assert {tmp_path / "run" / "logs" / f"prune-wanda-0.5.{kind}" for kind in ("log", "pulse")} <= found
    assert all(path.is_absolute() for path in found)


def test_an_engine_and_its_jobs(run: driver._Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(driver, "ray", Sent())
    dense = next(job for job in run._prepared.jobs if job.prune is None)
    run._add(dense, Inspections(trust=False))
    worker = run._worker(0, Place(node_id="n", gpus=1, threads=1, sharing=2), {})
    shared, alone = worker._setup.config, run._worker(1, Place(node_id="n", gpus=1, threads=1), {})._setup.config
    assert (shared.gpu_memory_utilization, shared.shared_gpu) == (0.45, True)
    assert (alone.gpu_memory_utilization, alone.shared_gpu) == (0.9, False)
    assignment = run._board.take(0, None, None)
    found = set(_paths([assignment, worker._setup]))
    assert {tmp_path / "model", tmp_path / "run" / "logs" / "engine-0.log"} <= found
    assert all(path.is_absolute() for path in found)
