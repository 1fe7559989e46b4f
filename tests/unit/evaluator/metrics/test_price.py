"""Table `price`: what each checkpoint costs on each machine, beside how many answers
it keeps."""

import re

import pandas as pd
import pytest

from evaluator.metrics import TABLES, FilledTable, Inputs
from evaluator.report.figures import draw_each
from tests.support.records import Seen, numbered
from tests.support.tables import assert_has, only, outcomes

SPENT = ["seconds", "engine_hours", "gpu_hours", "cost"]
SPEED = ["peak_memory", "tokens_per_second", "seconds_per_item", *SPENT, "machine"]
NAMES = ["task", "checkpoint", "bytes", "bits_a_weight", "parameters", *SPEED, "reason"]
GPU_HOUR = {"gpu": "a: 3,4", "seconds": 3600.0}
SIZES = [
    {"name": "dense", "bytes": 2000, "disk_bytes": 2080, "parameters": 1000},
    {"name": "gptq", "bytes": 530, "disk_bytes": 600, "parameters": 1000},
]
CALL = {
    "checkpoint": "gptq",
    "task": "t",
    "device": "H100",
    "prompt_tokens": 60,
    "generated_tokens": 40,
    "busy_seconds": 3.0,
    "waiting_seconds": 1.0,
    "seconds": 4.0,
    "peak_memory": 700,
    "items": 2,
}


def filled(
    *calls: object,
    tasks: tuple[str, ...] = ("t",),
    sizes: object = SIZES,
    price: object = None,
) -> FilledTable:
    known = Seen(greedy=True, choice=True)
    dense = numbered(english=[known] * 3)
    own = {**dense, "english/2": Seen(greedy=False, choice=True)}
    parts = []
    for task in tasks:
        parts.append(outcomes("dense", dense, task=task))
        parts.append(outcomes("gptq", own, base="dense", task=task))
    run = {"checkpoints": sizes, "engine_stats": list(calls)}
    run["config"] = {"resources": {"price_per_gpu_hour": price}}
    return TABLES["price"].fill(Inputs(pd.concat(parts), run=run))


def told(*calls: object, **given: object) -> pd.DataFrame:
    table = filled(*calls, **given)
    return table.told(table.frame)


def test_price_of_all_calls():
    """Two calls: (100 + 300) tokens in (4 + 4) s, and 2 + 1 items; the higher peak."""
    again = CALL | {"generated_tokens": 240, "items": 1, "peak_memory": 650}
    rows = told(CALL, again)
    assert rows.columns.tolist() == NAMES
    assert_has(
        rows, checkpoint=["dense", "gptq"], bytes=[2080, 600], parameters=[1000] * 2
    )
    assert_has(rows, bits_a_weight=[16, 8 * 530 / 1000], peak_memory=[None, 700])
    assert_has(rows, tokens_per_second=[None, 400 / 8], seconds_per_item=[None, 8 / 3])
    assert_has(rows, machine=[None, "H100"], engine_hours=[None, 8 / 3600])
    assert_has(rows, seconds=[None, 8], gpu_hours=[None] * 2, cost=[None] * 2)
    assert rows["reason"][1] == "no GPU is known to have worked at it"
    assert rows["reason"][0].startswith("not measured: peak memory, tokens per second")


def test_speed_is_of_all_tasks_of_a_checkpoint():
    """They share steps, which count for the task whose shard ends first. Of 2 + 2 items
    of one there are 3: some have records of two calls."""
    none = dict.fromkeys(("prompt_tokens", "generated_tokens", "busy_seconds", "waiting_seconds"), 0)  # fmt: skip
    first = CALL | {"seconds": 3.0}
    other = CALL | none | {"task": "u", "seconds": 1.0, "peak_memory": 900}
    rows = told(first, other, first, tasks=("t", "u"))
    rows = rows[rows["checkpoint"] == "gptq"]
    assert_has(rows, tokens_per_second=[25, 25], peak_memory=[900, 900])
    assert_has(rows, seconds_per_item=[6 / 3, 1 / 2], seconds=[6, 1])


def test_hours_are_of_checkpoint_and_task():
    """An engine of two GPUs has twice its hours. A run of before did not divide its
    hours by task: they are nobody's."""
    later = CALL | GPU_HOUR | {"task": "u", "seconds": 1800.0}
    rows = told(CALL | GPU_HOUR, later, tasks=("t", "u"), price=2.5)
    rows = rows[rows["checkpoint"] == "gptq"]
    assert_has(rows, task=["t", "u"], seconds=[3600, 1800], engine_hours=[1, 0.5])
    assert_has(rows, gpu_hours=[2, 1], cost=[5, 2.5], tokens_per_second=[25, 25])
    assert_has(rows, seconds_per_item=[3600 / 2, 1800 / 2], reason=[None] * 2)
    before = told(CALL | {"task": ""}, price=2.5)
    assert_has(before, engine_hours=[None] * 2, cost=[None] * 2)
    alone = told(CALL | {"gpu": "a: 3"}, price=3600)
    assert_has(only(alone, checkpoint="gptq"), seconds=4, gpu_hours=4 / 3600, cost=4)
    free = told(CALL | GPU_HOUR, price="2.5")
    why = "no resources.price_per_gpu_hour"
    assert_has(only(free, checkpoint="gptq"), gpu_hours=2, cost=None, reason=why)


def test_engines_on_one_gpu_divide_its_hours():
    """One holds it for an hour, and another beside it for half of that: an hour in
    all, in parts of 2 and 1. Another GPU is not theirs."""
    first = CALL | GPU_HOUR | {"gpu": "a: 3"}
    beside = first | {"engine": 1, "checkpoint": "dense", "seconds": 1800.0}
    apart = first | {"engine": 2, "gpu": "a: 4", "device": "A100"}
    rows = told(first, beside, apart)
    assert_has(only(rows, checkpoint="dense"), gpu_hours=1 / 3, engine_hours=0.5)
    own = only(rows, checkpoint="gptq", machine="H100")
    assert_has(own, gpu_hours=2 / 3, engine_hours=1)
    assert_has(only(rows, checkpoint="gptq", machine="A100"), gpu_hours=1)


def test_price_keeps_machines_apart():
    other = CALL | {"device": "A100", "busy_seconds": 9.0}
    table = filled(CALL, other, CALL | {"checkpoint": "dense"})
    rows = table.told(table.frame)
    assert_has(
        rows, checkpoint=["dense", "gptq", "gptq"], machine=["H100", "H100", "A100"]
    )
    assert_has(rows, tokens_per_second=[25, 25, 10])
    here, there = draw_each(table.table, table.shown)
    for drawn, machine, dense in ((here, "H100", 2), (there, "A100", 0)):
        assert f"{machine}: kept" in drawn
        assert len(re.findall(r">1\s+dense<", drawn)) == dense
    # A figure holds a checkpoint against a base.
    assert not draw_each(table.table, table.frame[table.frame["checkpoint"] == "dense"])
    some = [{"name": "gptq", "bytes": 530}, {"name": "gptq"}, 3]
    row = only(told(CALL, sizes=some), checkpoint="gptq")
    assert_has(row, bytes=530, bits_a_weight=None, parameters=None)
    nothing = filled(sizes=None)
    assert (nothing.rows, nothing.note) == ([], "No rows: it needs run.json.")


@pytest.mark.parametrize(
    ("changes", "empty"),
    [
        # a run of before
        (
            {"items": None, "peak_memory": None},
            ["peak_memory", "seconds_per_item", "gpu_hours", "cost"],
        ),
        # engine torch
        ({"busy_seconds": None}, ["tokens_per_second", "gpu_hours", "cost"]),
        ({"seconds": None}, ["seconds_per_item", *SPENT]),
        ({"busy_seconds": float("nan")}, SPEED),  # no counters that can be read
        ({"device": 3, "items": -1}, SPEED),
    ],
)
def test_what_was_not_measured_is_empty(changes, empty):
    row = only(told(CALL | changes, "x", {"checkpoint": "gptq"}), checkpoint="gptq")
    assert [name for name in NAMES if pd.isna(row[name])] == empty
