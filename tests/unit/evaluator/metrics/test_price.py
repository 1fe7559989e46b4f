"""Table `price`: what each checkpoint costs on each machine, beside how many answers
it keeps."""

from dataclasses import asdict

import pandas as pd
import pytest

from evaluator.metrics import (
    TABLES,
    Inputs,
    compute_tables,
    headline_of,
    reduce_records,
)
from evaluator.report.figures import draw_each
from evaluator.report.page import grid
from evaluator.store.run_json import Served
from tests.support.records import Seen, records
from tests.support.tables import has, only

NAMES = [
    *("checkpoint", "bytes", "bits_a_weight", "parameters"),
    *("peak_memory", "tokens_per_second", "seconds_per_item", "machine"),
]
KNOWN = Seen(greedy=True, choice=True)
DENSE = dict.fromkeys(("english/1", "english/2", "english/3"), KNOWN)
SIZES = [
    {"name": "dense", "bytes": 2000, "disk_bytes": 2080, "parameters": 1000},
    {"name": "gptq", "bytes": 530, "disk_bytes": 600, "parameters": 1000},
]
CALL = asdict(
    Served(
        checkpoint="gptq", device="H100", prompt_tokens=60, generated_tokens=40,
        busy_seconds=3.0, waiting_seconds=1.0, peak_memory=700, items=2,
    )
)  # fmt: skip


def filled(*calls: object, tasks: tuple[str, ...] = ("t",), sizes: object = SIZES):
    parts = [
        part
        for task in tasks
        for part in (
            records("dense", DENSE, task=task),
            records(
                "gptq",
                DENSE | {"english/2": Seen(greedy=False, choice=True)},
                base="dense",
                task=task,
            ),
        )
    ]
    outcomes = pd.concat([reduce_records(part) for part in parts], ignore_index=True)
    return compute_tables(
        Inputs(outcomes, run={"checkpoints": sizes, "engine_stats": list(calls)})
    )["price"]


def told(*calls: object, **given: object) -> pd.DataFrame:
    table = filled(*calls, **given)
    assert table.told(table.frame).columns.tolist() == NAMES
    return table.told(table.frame)


def test_price_of_all_calls():
    """Two calls: (100 + 300) tokens in (4 + 4) s, and 2 + 6 items; the higher peak.
    Two tasks are still one row."""
    again = CALL | {"generated_tokens": 240, "items": 6, "peak_memory": 650}
    rows = told(CALL, again, tasks=("t", "u"))
    row = only(rows, checkpoint="gptq")
    assert row[NAMES[1:4]].tolist() == [600, 8 * 530 / 1000, 1000]
    assert row[NAMES[4:]].tolist() == [700, 400 / 8, 8 / 8, "H100"]
    dense = only(rows, checkpoint="dense")
    assert dense[NAMES[1:4]].tolist() == [2080, 16, 1000]
    assert dense[NAMES[4:]].isna().all()


def test_price_keeps_machines_apart():
    """Machines are never mixed and a size of before is known."""
    table = filled(
        CALL,
        CALL | {"device": "A100", "busy_seconds": 9.0},
        CALL | {"checkpoint": "dense"},
    )
    rows = table.told(table.frame)
    assert rows[["checkpoint", "machine"]].to_numpy().tolist() == [
        ["dense", "H100"], ["gptq", "H100"], ["gptq", "A100"],
    ]  # fmt: skip
    assert only(rows, machine="A100")["tokens_per_second"] == 10
    assert only(rows, machine="H100", checkpoint="gptq")["tokens_per_second"] == 25
    here, there = draw_each(table.table, table.shown)
    assert ("H100: kept" in here, "A100" in here, here.count(">dense<")) == (
        True,
        False,
        2,
    )
    assert ("A100: kept" in there, "H100" in there, there.count(">dense<")) == (
        True,
        False,
        0,
    )
    assert "figure-price-1-" in there
    # A figure holds a checkpoint against a base; without sizes, or without a base,
    # there is none.
    assert not draw_each(table.table, table.frame[table.frame["checkpoint"] == "dense"])
    assert not draw_each(table.table, filled(CALL, sizes=[]).shown)
    row = only(
        told(CALL, sizes=[{"name": "gptq", "bytes": 530}, {"name": "gptq"}, 3]),
        checkpoint="gptq",
    )
    has(row, bytes=530, bits_a_weight=None, parameters=None)
    nothing = filled(sizes=None)
    assert (nothing.frame.empty, nothing.note, TABLES["price"].silent) == (
        True,
        "",
        True,
    )


def test_price_figure_and_page_columns():
    """The figure has the headlines share and the page its own columns."""
    table = filled(CALL)
    tables = Inputs(
        reduce_records(
            pd.concat([records("dense", DENSE), records("gptq", DENSE, base="dense")])
        )
    )
    assert (
        headline_of({name: each.rows for name, each in compute_tables(tables).items()})[
            "kept"
        ].tolist()[1]
        == 1
    )
    assert table.frame["kept"].tolist() == [1, pytest.approx(2 / 3)]
    assert list(grid(table.told(table.frame), table.table.columns).headings) == [
        "checkpoint", "on disk", "bits a weight", "parameters", "peak memory", "tokens per second", "seconds per item",
        "machine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "empty"),
    [
        # a run of before
        ({"items": None, "peak_memory": None}, ["peak_memory", "seconds_per_item"]),
        # engine torch
        (
            {"busy_seconds": None, "waiting_seconds": None},
            ["tokens_per_second", "seconds_per_item"],
        ),
        ({"busy_seconds": float("nan")}, NAMES[4:]),  # no counters that can be read
        ({"device": 3, "items": -1}, NAMES[4:]),
    ],
)
def test_what_was_not_measured_is_empty(changes, empty):
    row = only(told(CALL | changes, "x", {"checkpoint": "gptq"}), checkpoint="gptq")
    assert [name for name in NAMES if pd.isna(row[name])] == empty
