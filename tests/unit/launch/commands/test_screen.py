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


def test_it_says_what_is_saved_and_how_often_it_decides_alike(run, monkeypatch, capsys):
    before = sorted(run.rglob("*"))
    assert typed(monkeypatch, "screen", run, "--items", 20, "--repeats", 5, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["tasks"]
    assert (found["items"], found["anchors"], found["repeats"], found["whole"]) == (60, 20, 5, 120)
    assert found["saved"] == 40 * found["out"] / 5
    assert found["out"] == sum(fate["out"] for fate in found["fates"]) > 0
    assert typed(monkeypatch, "screen", run, "--items", 20, "--repeats", 5, "--against", "gate") == 0
    said = capsys.readouterr().out
    assert "20 of 60 items first, against the gate by open and choice, confidence 0.99, 5 draws" in said
    assert "same decision as the full run: 5 of 5 draws (100.0 %)" in said
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "worst"), "error: resurface screen: --against: \"worst\": Input should be 'best' or 'gate'"),
        (("--confidence", 1), "error: resurface screen: --confidence: 1.0: Input should be less than 1"),
        (("--items", 0), "error: resurface screen: --items: 0"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(run, monkeypatch, capsys, arguments, message):
    assert typed(monkeypatch, "screen", run, *arguments) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_run_without_anything_to_screen(tmp_path, monkeypatch, capsys):
    run = write_run(tmp_path / "one", 4, ("dense", "wanda-0.5"), languages=("english",))
    assert typed(monkeypatch, "screen", run) == 2
    assert "nothing to screen: no task has two compressed checkpoints" in capsys.readouterr().err
