"""The doctor on runs of which one control errs in one way."""

import pandas as pd
import pytest
from typer.testing import CliRunner

from evaluator.core.controls import name_of
from evaluator.metrics import TABLES, Inputs, reduce_records
from launch.commands import doctor
from launch.commands.cli import app
from launch.sweep.models import BUNDLED
from tests.support.records import Seen, records
from tests.support.schemas import valid

ITEMS = {
    f"english/{n}": Seen(True, True, beams=(True, False), rank=n + 1, margin=-0.1 * n)
    for n in range(4)
}
TORCH = name_of(BUNDLED, "engine:torch")


def run_of(*checkpoints):
    parts = []
    for name in checkpoints:
        base = None if name == BUNDLED else BUNDLED
        part = records(name, ITEMS, base=base, digest=BUNDLED)
        part.loc[part["probe"] == "beam", "logprob"] = -1.0 - part["index"]
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def failed(run, computed="float32"):
    noise = TABLES["noise"].fill(Inputs(reduce_records(run))).frame
    return {
        check.check
        for check in doctor.checks_of(noise, run, computed)
        if not check.passed
    }


@pytest.fixture
def run():
    return run_of(BUNDLED, name_of(BUNDLED, "repeat"), TORCH)


def test_equal_engines_pass(run):
    assert failed(run) == set()


@pytest.mark.parametrize(
    ("probe", "column", "fault", "wrong"),
    [
        ("greedy", "logprob", lambda score: score - 0.3, "greedy"),
        ("greedy", "text", lambda text: "other", "greedy"),
        ("beam", "logprob", lambda score: score - 0.1, "beam"),
        ("choice", "logprob", lambda score: 1.1 * score, "choice"),
        ("rank", "margin", lambda margin: margin - 0.1, "rank"),
        ("rank", "rank", lambda rank: rank + 2, "ranks"),
    ],
)
def test_wrong_engine_fails_its_check(run, probe, column, fault, wrong):
    rows = (run["checkpoint"] == TORCH) & (run["probe"] == probe)
    run.loc[rows, column] = run.loc[rows, column].map(fault)
    assert failed(run) == {f"engine:torch: {wrong}"}


def test_failed_item_fails_its_check(run):
    row = (run["checkpoint"] == TORCH) & (run["probe"] == "greedy")
    run.loc[row.idxmax(), ["status", "contains"]] = ["engine_error", None]
    assert failed(run) == {"engine:torch: greedy"}


def test_missing_control_fails_its_checks():
    wrong = failed(run_of(BUNDLED, TORCH))
    assert wrong == {f"repeat: {name}" for name in (*doctor.PROBES, "ranks")}


def test_half_precision_moves_further(run):
    rows = (run["checkpoint"] == TORCH) & (run["probe"] == "greedy")
    run.loc[rows, "logprob"] -= 0.05
    assert failed(run) == {"engine:torch: greedy"}
    assert failed(run, "half, float32 logits") == set()


@pytest.mark.parametrize("passed", [True, False])
def test_card_and_exit_code(tmp_path, monkeypatch, run, passed):
    noise = TABLES["noise"].fill(Inputs(reduce_records(run))).frame
    checks = [*doctor.checks_of(noise, run, "float32")]
    checks[0].passed = passed
    monkeypatch.setattr(doctor, "examine", lambda run: checks)
    card = tmp_path / "cards" / "card.md"
    done = CliRunner().invoke(app, ["doctor", "--json", "--out", str(card)])
    assert done.exit_code == (0 if passed else 1)
    document = valid("doctor", done.stdout)
    assert (document["passed"], len(document["checks"])) == (passed, len(checks))
    text = card.read_text()
    assert text.startswith(f"# doctor: {document['verdict']}\n")
    assert all(f"| {check.check} | " in text for check in checks)
