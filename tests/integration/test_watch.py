"""`resurface sweep --watch` on a real engine."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from launch.sweep import watching
from tests.support.models import save_tiny_model
from tests.support.runs import finish, records

pytestmark = pytest.mark.slow
SWEEP = """
models: {run: "ckpts/step-*"}
tasks: [{task: gazetteer, items: 2, languages: [english], probes: [greedy]}]
engine: {kind: torch}
"""


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
