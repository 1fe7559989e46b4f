"""Table `screening`, and how other tables name a checkpoint that was asked a few items only."""

from __future__ import annotations

from dataclasses import asdict, replace

import pandas as pd

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.store.screening import Screened, screened_of
from tests.support.records import Seen, records
from tests.support.tables import only

OUT = Screened(
    task="t", checkpoint="bad", base="dense", out=True, measure="open", anchors=4, asked=4, items=8, n=4, accuracy=0.25,
    reference="good", reference_accuracy=1.0, difference=0.75, low=0.1, high=0.9, margin=0.0, confidence=0.9, level=0.1,
)  # fmt: skip
KEPT = replace(OUT, checkpoint="good", out=False, asked=8, accuracy=1.0, reference="bad", difference=-0.75)


def inputs(*rows: object) -> Inputs:
    items = [f"english/{number}" for number in range(8)]
    parts = [
        records("dense", {key: Seen(greedy=True) for key in items}),
        records("good", {key: Seen(greedy=True) for key in items}, base="dense"),
        records("bad", {key: Seen(greedy=key.endswith("0")) for key in items[:4]}, base="dense"),
    ]
    outcomes = pd.concat([reduce_records(part) for part in parts], ignore_index=True)
    return Inputs(outcomes, run={"screening": list(rows)})


def test_the_table_says_what_was_decided_and_by_what():
    frame = TABLES["screening"].frame(inputs(asdict(KEPT), asdict(OUT)))
    assert frame["checkpoint"].tolist() == ["bad", "good"]
    bad = only(frame, checkpoint="bad")
    assert (bad["decision"], bad["asked"], bad["items"], bad["reference"]) == ("screened out", 4, 8, "good")
    assert (bad["difference"], bad["difference_low"], bad["confidence"]) == (0.75, 0.1, 0.9)
    assert bad["reason"] == "screened out: asked 4 of 8 items"
    good = only(frame, checkpoint="good")
    assert (good["decision"], good["asked"]) == ("asked everything", 8)
    assert pd.isna(good["reason"])


def test_every_row_of_what_is_out_says_so_and_has_the_n_of_its_anchors():
    accuracy = TABLES["accuracy"].frame(inputs(asdict(OUT)))
    bad = only(accuracy, checkpoint="bad", language="all", probe="greedy")
    assert (bad["n"], bad["n_paired"], bad["accuracy"], bad["drop"]) == (4, 4, 0.25, 0.75)
    assert bad["reason"] == "screened out: asked 4 of 8 items"
    assert pd.isna(only(accuracy, checkpoint="good", language="all", probe="greedy")["reason"])


def test_a_run_without_screening_has_no_such_table():
    filled = TABLES["screening"].fill(inputs())
    assert (len(filled.frame), filled.note) == (0, "")


def test_rows_that_are_none_are_left_out():
    run = {"screening": [asdict(OUT), {"task": "t"}, {**asdict(OUT), "n": "many"}, 3]}
    assert screened_of(run) == [OUT]
    assert screened_of({"screening": "no"}) == []
