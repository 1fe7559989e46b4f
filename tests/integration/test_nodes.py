"""Two Ray nodes on this machine: what is sent is found from another directory, and engines stand where they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pruning.output.manifest import read_manifest
from tests.support import pruning as tiny
from tests.support.models import save_tiny_model
from tests.support.ray_nodes import ray_nodes
from tests.support.runs import records, resurface

pytestmark = pytest.mark.slow


def _write_sweep(directory: Path, **more: object) -> None:
    """A sweep in which everything is named relative to `directory`."""
    save_tiny_model(directory / "model")
    (directory / "text.txt").write_text("\n".join(tiny.lines(8)), encoding="utf-8")
    document = {
        "models": {"dense": "model"},
        "prune": [{"method": "wanda", "sparsity": 0.5}],
        "calibration": {"source": "text:text.txt", "samples": 8, "sequence_length": 32},
        "tasks": [{"task": "gazetteer", "items": 2, "languages": ["english"], "probes": ["greedy", "choice"]}],
        "engine": {"kind": "torch"},
    }
    (directory / "sweep.yaml").write_text(yaml.safe_dump(document | more), encoding="utf-8")


def test_relative_paths_are_found_by_a_node_that_was_started_elsewhere(tmp_path: Path) -> None:
    """The head has no GPU, so that the prune task and the engine run on the other node."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    _write_sweep(here)
    with ray_nodes([(here, {"num_cpus": 1}), (there, {"num_cpus": 1, "num_gpus": 1})]) as address:
        done = resurface("sweep", "sweep.yaml", "--out", "run", cwd=here, cluster=address)
    assert done.returncode == 0, done.stdout + done.stderr
    found = records(here / "run")
    assert set(found["checkpoint"]) == {"dense", "wanda-0.5"}
    assert set(found["status"]) == {"ok"}
    assert set(found[found["checkpoint"] == "wanda-0.5"]["calibration"]) == {"text:text.txt"}
    manifest = read_manifest(here / "run" / "checkpoints" / "wanda-0.5")
    assert manifest is not None
    assert manifest.config["calibration"]["source"] == "text:text.txt"
    assert not list(there.iterdir())
    identity = json.loads((here / "run" / "run.json").read_text())["identity"]
    assert identity["checkpoints"][0]["prune"]["calibration"]["source"] == "text:text.txt"
    assert str(tmp_path) not in json.dumps(identity)
