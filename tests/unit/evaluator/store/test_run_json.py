"""Failures and counters as rows of run.json and its tables."""

from dataclasses import asdict, replace

from evaluator.store.run_json import (
    COLUMNS,
    Failure,
    Served,
    failure_frame,
    failures_of,
    rows_as,
)

LOST = Failure(checkpoint="wanda", stage="load", reason="no", engine="0, 1", attempts=3)


def test_failure_row_reads_back() -> None:
    row = replace(LOST, mendable=True).row
    assert failures_of({"failures": [row, {"stage": "load"}]}) == [LOST]
    assert tuple(row) == COLUMNS
    assert failure_frame([LOST]).to_dict("records") == [row]


def test_served_row_reads_back() -> None:
    served = Served(checkpoint="wanda", device="cpu", items=3, notes=["slow"])
    assert "kv_scales" not in served.row
    assert replace(served, kv_scales="none").row["kv_scales"] == "none"
    assert rows_as({"rows": [asdict(served), {}]}, "rows", Served) == [served]
