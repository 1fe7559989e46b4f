"""`resurface compare` and `resurface export` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.support.commands import typed
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("compare") / "run", 12, ("dense", "wanda-0.6"), languages=("english",))


def test_two_checkpoints_of_two_runs(run, tmp_path, monkeypatch, capsys):
    csv = tmp_path / "moved.csv"
    assert typed(monkeypatch, "compare", run, run, "--pair", "dense=wanda-0.6", "--csv", csv) == 0
    said = capsys.readouterr().out
    assert "weights: digest of de | digest of wa" in said
    assert "Nothing moved by more than noise" in said
    assert set(pd.read_csv(csv)["checkpoint_b"]) == {"wanda-0.6"}
    assert typed(monkeypatch, "compare", run, run, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["moved"] == 0
    assert {row["verdict"] for row in told["rows"]} == {"same"}
    assert {each["checkpoint"] for each in told["differences"]} == {"dense", "wanda-0.6"}


def test_an_export_beside_its_run(run, monkeypatch, capsys):
    assert typed(monkeypatch, "export", run, "--lm-eval") == 0
    assert "6 files in" in capsys.readouterr().out
    assert typed(monkeypatch, "compare", run, run / "lm-eval") == 0
    assert "Nothing differs: every score is the same." in capsys.readouterr().out
    assert typed(monkeypatch, "compare", run, run) == 0  # still a run, whatever lies in it
    assert "1.000" in capsys.readouterr().out  # one model on both sides: its own p, without Holm's


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "nowhere", "nowhere"), "nowhere: no such file or directory"),
        (("compare", ".", "."), "not a run directory"),
        (("compare", "a.jsonl", "."), "a.jsonl: neither a run directory nor a file of lm-eval's (samples_*.jsonl)"),
        (("compare", ".", ".", "--pair", "dense"), "--pair: 'dense' is not of the form A=B"),
        (("compare", ".", ".", "--pair-task", "=x"), "--pair-task: '=x' is not of the form A=B"),
        (("export", "."), "Missing option '--lm-eval'"),
    ],
)
def test_what_cannot_be_compared_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    assert typed(monkeypatch, *arguments) == 2
    assert message in capsys.readouterr().err
