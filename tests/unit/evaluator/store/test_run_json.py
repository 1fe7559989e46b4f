"""Failures and counters as rows of run.json and its tables."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from evaluator.store.run_json import (
    COLUMNS,
    Failure,
    Served,
    failure_frame,
    failures_of,
    no_run,
    rows_as,
)

LOST = Failure(checkpoint="wanda", stage="load", reason="no", engine="0, 1", attempts=3)


def test_failure_row_reads_back() -> None:
    row = replace(LOST, mendable=True).row
    assert failures_of({"failures": [row, {"stage": "load"}]}) == [LOST]
    assert tuple(row) == COLUMNS
    assert failure_frame([LOST]).to_dict("records") == [row]


@pytest.mark.parametrize(
    ("stage", "task", "text"),
    [
        ("prune", "", "wanda could not be made: no"),
        ("load", "", "wanda does not load, and was set aside: no"),
        ("evaluate", "", "wanda: was set aside: no"),
        ("evaluate", "toy", "wanda, toy: was set aside: no"),
        ("item", "toy", "wanda: item 'i3' of toy is recorded as engine_error: no"),
    ],
)
def test_failure_in_one_line(stage, task, text) -> None:
    assert replace(LOST, stage=stage, task=task, item="i3").text == text


def test_served_row_reads_back() -> None:
    served = Served(checkpoint="wanda", device="cpu", items=3, notes=["slow"])
    assert "kv_scales" not in served.row
    assert replace(served, kv_scales="none").row["kv_scales"] == "none"
    assert rows_as({"rows": [asdict(served), {}]}, "rows", Served) == [served]


@pytest.mark.parametrize("name", ["a**b", "[", ""])
def test_odd_names_are_no_patterns(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "run.json").touch()
    told = str(no_run(Path(name), "run.json"))
    assert "did you mean" not in told
    assert told.endswith("(runs in .: demo)")
