"""`resurface sweep --watch` on a real engine."""

import random
import shutil
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

from launch.sweep import watching
from tests.support.models import load_model, save_tiny_model
from tests.support.runs import assert_alike, finish, records

pytestmark = pytest.mark.slow
SWEEP = """
models: {run: "ckpts/step-*"}
tasks: [{task: gazetteer, items: 2, languages: [english], probes: [greedy]}]
engine: {kind: torch}
"""


@pytest.mark.more
def test_appearing_checkpoints_are_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has vanished stays in the tables."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 2.0)
    file, run = tmp_path / "sweep.yaml", tmp_path / "run"
    file.write_text(SWEEP, encoding="utf-8")
    for step in (1, 2):
        save_tiny_model(tmp_path / "ckpts" / f"step-{step}", seed=step)
        finish("sweep", file, "--out", run, "--watch", "--idle-hours", "0.001")
        shutil.rmtree(tmp_path / "ckpts" / f"step-{step}")
    names = ["run-step-1", "run-step-2"]
    assert sorted(records(run)["checkpoint"].unique()) == names
    table = pd.read_csv(run / "tables" / "accuracy.csv")
    assert sorted(table["checkpoint"].unique()) == names


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_slow_copy_is_evaluated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """And whole: its records are those of a checkpoint that was there at once. The
    files come in a random order, some bytes at a time."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 2.0)
    model = save_tiny_model(tmp_path / "model")
    load_model(model).save_pretrained(model, max_shard_size="150KB")
    (model / "model.safetensors").unlink()
    assert len(list(model.glob("model-*.safetensors"))) > 1
    target = tmp_path / "slow" / "ckpts" / "step-1"
    target.mkdir(parents=True)
    slow = threading.Thread(target=_copy_slowly, args=(model, target, seed))
    slow.start()
    shutil.copytree(model, tmp_path / "whole" / "ckpts" / "step-1")
    for name in ("slow", "whole"):
        file, run = tmp_path / name / "sweep.yaml", tmp_path / name / "run"
        file.write_text(SWEEP, encoding="utf-8")
        done = finish("sweep", file, "--out", run, "--watch", "--idle-hours", "0.008")
        assert ("not whole yet" in done.stdout) == (name == "slow")
        assert "left out" not in done.stdout
        events = (run / "logs" / "events.jsonl").read_text()
        assert events.count('"loaded"') == 1
    slow.join()
    assert_alike(*(records(tmp_path / name / "run") for name in ("slow", "whole")))


def _copy_slowly(source: Path, target: Path, seed: int) -> None:
    """In about 20 s."""
    files, draw = sorted(source.iterdir()), random.Random(seed)
    draw.shuffle(files)
    size = sum(file.stat().st_size for file in files) // 200
    for file in files:
        content = file.read_bytes()
        with (target / file.name).open("wb", buffering=0) as copy:
            for start in range(0, len(content), size):
                copy.write(content[start : start + size])
                time.sleep(0.1)
