"""`resurface screen` on a made-up run: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import typed
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("screen") / "run",
        30,
        ("dense", "wanda-0.5", "magnitude-0.6"),
        languages=("english", "swahili"),
    )


def test_it_shows_verdicts_and_costs_and_writes_nothing(run, monkeypatch, capsys):
    before = sorted(run.rglob("*"))
    assert typed(monkeypatch, "screen", run, "--items", 20, "--repeats", 5, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["repeats"] == 5
    rows = {row["checkpoint"]: row for row in found["checkpoints"]}
    assert {row["items"] for row in rows.values()} == {60}
    lost = rows["magnitude-0.6"]
    assert (lost["gate"], lost["block"]) == ("BLOCK", 1.0)
    assert 20 <= lost["median_items"] < 60
    assert all(row["pass"] + row["block"] + row["warn"] == 1 for row in rows.values())
    assert typed(monkeypatch, "screen", run, "--items", 20, "--repeats", 5) == 0
    said = capsys.readouterr().out
    assert "half of 5 draws need; first look 20 items" in said
    assert "At the median, screening saves " in said
    assert sorted(run.rglob("*")) == before


def test_bad_settings_are_refused_in_one_line(run, monkeypatch, capsys):
    assert typed(monkeypatch, "screen", run, "--items", 9) == 2
    message = "error: resurface screen: --items: 9: Input should be greater than or equal to 10"
    assert capsys.readouterr().err.startswith(message)


def test_a_run_without_anything_to_screen(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "one", 4, ("dense",), languages=("english",))
    assert typed(monkeypatch, "screen", run) == 2
    assert "nothing to screen: no task has a base and a compressed checkpoint" in capsys.readouterr().err
