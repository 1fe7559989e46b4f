"""When a checkpoint under a pattern is taken, and what ends the watch."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.core.config import validated
from launch.sweep.config import SweepConfig
from launch.sweep.watching import Watch, rounds
from tests.support.models import save_tiny_model
from tests.support.sweeps import gazetteer, refused

PATTERN = {"run": "ckpts/step-*"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "m")


def sweep(model: Path, **more: Any) -> SweepConfig:
    document = {"models": {"m": str(model), **PATTERN}, "tasks": [gazetteer()]}
    return validated(SweepConfig, document | more, "s.yaml")


class Watched:
    def __init__(self, folder: Path, config: SweepConfig, **options: Any) -> None:
        self.told: list[str] = []
        options = {"newest_first": False} | options
        self.watch = Watch(config, folder, self.told.append, **options)

    def look(self) -> list[str] | None:
        config = self.watch.look()
        return None if config is None else list(config.models)[1:]


def test_half_copied_checkpoint_waits(model, tmp_path: Path) -> None:
    """However its files grow, it is told of once."""
    watched, folder = Watched(tmp_path, sweep(model)), tmp_path / "ckpts" / "step-1"
    folder.mkdir(parents=True)
    weights = (model / "model.safetensors").read_bytes()
    for file in model.glob("*.json"):
        shutil.copy(file, folder)
    for size in (9, len(weights) // 2, len(weights) // 2, len(weights) - 1):
        (folder / "model.safetensors").write_bytes(weights[:size])
        assert watched.look() is None
    (line,) = watched.told
    assert line.startswith(f"{folder}: not whole yet: ")
    (folder / "model.safetensors").write_bytes(weights)
    assert watched.look() is None
    os.utime(folder / "config.json", ns=(1, 1))  # another look, another state
    assert watched.look() is None
    assert watched.look() == ["run-step-1"]


def test_newest_comes_first(model, tmp_path: Path) -> None:
    watched = Watched(tmp_path, sweep(model), newest_first=True)
    for step in (1, 2, 3):
        shutil.copytree(model, tmp_path / "ckpts" / f"step-{step}")
        for file in (tmp_path / "ckpts" / f"step-{step}").iterdir():
            os.utime(file, ns=(step, step))
    assert [watched.look() for _ in range(4)] == [
        None,
        ["run-step-3"],
        ["run-step-2", "run-step-3"],
        ["run-step-1", "run-step-2", "run-step-3"],
    ]


def test_vanished_checkpoint_is_told_once(model, tmp_path: Path) -> None:
    """Also one that was not whole for a while."""
    watched, vanished = Watched(tmp_path, sweep(model)), tmp_path / "ckpts" / "step-1"
    for step in (1, 2):
        shutil.copytree(model, tmp_path / "ckpts" / f"step-{step}")
        if step == 1:
            config = vanished / "config.json"
            config.rename(vanished / "aside")
            watched.look()
            (vanished / "aside").rename(config)
            watched.look(), watched.look()
            shutil.rmtree(vanished)
    assert [watched.look() for _ in range(3)] == [None, ["run-step-2"], None]
    assert "not whole yet" in watched.told.pop(0)
    assert watched.told == [f"{vanished}: has vanished; its records stay"]
    shutil.rmtree(tmp_path / "ckpts")
    assert watched.look() is None


def test_refused_ones_are_found_singly(model, tmp_path: Path) -> None:
    """Whoever comes with a refused checkpoint is taken without it."""
    watched = Watched(tmp_path, sweep(model))
    for step in (1, 2, 3):
        shutil.copytree(model, tmp_path / "ckpts" / f"step-{step}")
    taken: list[str] = []
    for _ in range(7):
        names = watched.look() or taken
        if "run-step-2" in names:
            watched.watch.refuse("no")
        else:
            taken = names
    assert len(watched.told) == 1
    assert "step-2: left out until it changes: no" in watched.told[0]
    assert taken == ["run-step-1", "run-step-3"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"models": {"m": "bundled"}}, "--watch: no model is a pattern"),
        ({"base": "run"}, "base and --only name single models"),
        (
            {"models": PATTERN, "prune": [{"method": "wanda", "sparsity": 0.5}]},
            "need a model beside the patterns",
        ),
    ],
)
def test_unwatchable_sweep_is_refused(model, tmp_path: Path, more, told) -> None:
    assert told in refused(Watched, tmp_path, sweep(model, **more))


def test_idle_hours_end_the_watch(model, tmp_path: Path, monkeypatch) -> None:
    """Each new checkpoint begins them again; so does nothing else."""
    shutil.copytree(model, tmp_path / "ckpts" / "step-1")
    hours: list[float] = [0.0]

    def sleep(seconds: float) -> None:
        hours[0] += 0.25

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: hours[0] * 3600)
    monkeypatch.setattr("launch.sweep.watching.time", clock)
    watch = Watched(tmp_path, sweep(model)).watch
    sweeps = rounds(watch, lambda: False, 1)
    assert [list(each.models) for each in sweeps] == [["m", "run-step-1"]]
    assert hours == [1.25]
    assert list(rounds(watch, lambda: True, None)) == []
