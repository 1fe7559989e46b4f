"""Table `price`: what each checkpoint costs on each machine, beside how many answers
it keeps."""

import re

import pandas as pd
import pytest

from evaluator.metrics import TABLES, FilledTable, Inputs
from evaluator.report.figures import draw_each
from tests.support.records import Seen, numbered
from tests.support.tables import has, only, outcomes

SPEED = ["peak_memory", "tokens_per_second", "seconds_per_item", "engine_hours"]
SPEED += ["machine"]
NAMES = ["checkpoint", "bytes", "bits_a_weight", "parameters", *SPEED]
SIZES = [
    {"name": "dense", "bytes": 2000, "disk_bytes": 2080, "parameters": 1000},
    {"name": "gptq", "bytes": 530, "disk_bytes": 600, "parameters": 1000},
]
CALL = {
    "checkpoint": "gptq",
    "device": "H100",
    "prompt_tokens": 60,
    "generated_tokens": 40,
    "busy_seconds": 3.0,
    "waiting_seconds": 1.0,
    "peak_memory": 700,
    "items": 2,
}


def filled(
    *calls: object, tasks: tuple[str, ...] = ("t",), sizes: object = SIZES
) -> FilledTable:
    known = Seen(greedy=True, choice=True)
    dense = numbered(english=[known] * 3)
    own = {**dense, "english/2": Seen(greedy=False, choice=True)}
    parts = []
    for task in tasks:
        parts.append(outcomes("dense", dense, task=task))
        parts.append(outcomes("gptq", own, base="dense", task=task))
    run = {"checkpoints": sizes, "engine_stats": list(calls)}
    return TABLES["price"].fill(Inputs(pd.concat(parts), run=run))


def told(*calls: object, **given: object) -> pd.DataFrame:
    table = filled(*calls, **given)
    return table.told(table.frame)


def test_price_of_all_calls():
    """Two calls: (100 + 300) tokens in (4 + 4) s, and 2 + 6 items; the higher peak.
    Two tasks are still one row."""
    again = CALL | {"generated_tokens": 240, "items": 6, "peak_memory": 650}
    rows = told(CALL, again, tasks=("t", "u"))
    assert rows.columns.tolist() == NAMES
    has(rows, checkpoint=["dense", "gptq"], bytes=[2080, 600], parameters=[1000] * 2)
    has(rows, bits_a_weight=[16, 8 * 530 / 1000], peak_memory=[None, 700])
    has(rows, tokens_per_second=[None, 400 / 8], seconds_per_item=[None, 8 / 8])
    has(rows, machine=[None, "H100"], engine_hours=[None, 8 / 3600])


def test_price_keeps_machines_apart():
    other = CALL | {"device": "A100", "busy_seconds": 9.0}
    table = filled(CALL, other, CALL | {"checkpoint": "dense"})
    rows = table.told(table.frame)
    has(rows, checkpoint=["dense", "gptq", "gptq"], machine=["H100", "H100", "A100"])
    has(rows, tokens_per_second=[25, 25, 10])
    here, there = draw_each(table.table, table.shown)
    for drawn, machine, dense in ((here, "H100", 2), (there, "A100", 0)):
        assert f"{machine}: kept" in drawn
        assert len(re.findall(r">1\s+dense<", drawn)) == dense
    # A figure holds a checkpoint against a base.
    assert not draw_each(table.table, table.frame[table.frame["checkpoint"] == "dense"])
    some = [{"name": "gptq", "bytes": 530}, {"name": "gptq"}, 3]
    row = only(told(CALL, sizes=some), checkpoint="gptq")
    has(row, bytes=530, bits_a_weight=None, parameters=None)
    nothing = filled(sizes=None)
    assert (nothing.rows, nothing.note) == ([], "No rows: it needs run.json.")


@pytest.mark.parametrize(
    ("changes", "empty"),
    [
        # a run of before
        ({"items": None, "peak_memory": None}, ["peak_memory", "seconds_per_item"]),
        # engine torch
        (
            {"busy_seconds": None},
            ["tokens_per_second", "seconds_per_item", "engine_hours"],
        ),
        ({"busy_seconds": float("nan")}, SPEED),  # no counters that can be read
        ({"device": 3, "items": -1}, SPEED),
    ],
)
def test_what_was_not_measured_is_empty(changes, empty):
    row = only(told(CALL | changes, "x", {"checkpoint": "gptq"}), checkpoint="gptq")
    assert [name for name in NAMES if pd.isna(row[name])] == empty
