"""Table `noise` from records written by hand: a base and its controls."""

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.report.results import compute, part_of
from tests.support.records import Seen, records
from tests.support.tables import assert_has, rows_where

BOTH, SILENT = Seen(True, True, rank=1, margin=0.0), Seen(False, True)
DENSE = {f"english/{n}": BOTH for n in range(8)}
DENSE |= {"english/8": Seen(False, False), "english/9": Seen(True, fidelity=(0.0,))}
# Items 0 and 1 flip open answers, 2 a choice; 8 says another wrong answer.
AGAIN = DENSE | {
    "english/0": SILENT,
    "english/1": SILENT,
    "english/2": Seen(True, False, certainty=-0.3, rank=2, margin=-0.5),
    "english/8": Seen(False, False, said="worse"),
    "english/9": Seen(True, fidelity=(0.1, 0.3)),
}
NAME = "dense~order"


@pytest.fixture(scope="module")
def parts():
    text = {f"text/{n}": Seen(window=(-9.0, 2)) for n in range(3)}
    moved = text | {"text/0": Seen(window=(-9.25, 2))}
    return [
        records("dense", DENSE),
        records(NAME, AGAIN, base="dense", digest="dense"),
        records("pruned", AGAIN, base="dense"),
        records("dense", text, task="book"),
        records(NAME, moved, base="dense", digest="dense", task="book"),
    ]


@pytest.fixture(scope="module")
def inputs(parts):
    return Inputs(reduce_records(pd.concat(parts)))


def test_noise_by_hand(inputs):
    frame = TABLES["noise"].fill(inputs).frame

    def of(probe, **more):
        (row,) = rows_where(frame, {"probe": probe} | more).to_dict("records")
        assert_has(row, checkpoint=NAME, base="dense", control="order")
        return row

    greedy = of("greedy")
    assert_has(greedy, n=10, flips=2, flip_rate=0.2, changed_rate=0.3)
    assert greedy["flip_rate_low"] < 0.2 < greedy["flip_rate_high"]
    # of the 7 equal answers one moved by 3 tokens x .2 nats
    assert_has(greedy, distance=0.6 / 7, distance_max=pytest.approx(0.6))
    # gold wins by 1, and loses by 1
    assert_has(of("choice"), n=9, flips=1, changed_rate=1 / 9, distance=2 / 9)
    assert_has(of("rank"), n=6, flips=None, distance=0.5 / 6, distance_max=0.5)
    assert_has(of("perplexity"), n=3, distance=0.25 / 3, task="book")
    along = of("fidelity", along="gold answer")
    assert_has(along, n=1, kld=0.2, same_top=1.0, flips=None)
    assert along["kld_max"] == pytest.approx(0.3)


def test_other_tables_leave_controls_out(inputs, parts):
    """They are as without the control's records."""
    without = [part for part in parts if NAME not in {*part["checkpoint"]}]
    plain = Inputs(reduce_records(pd.concat(without)))
    for table in TABLES:
        if table.name != "noise":
            found, wanted = (table.fill(each).frame for each in (inputs, plain))
            pd.testing.assert_frame_equal(found, wanted)
    assert not TABLES["noise"].fill(plain).rows
    assert TABLES["noise"].fill(plain).note.startswith("No rows: ")


def test_largest_noise_is_told(inputs):
    """Of each control, also on a page of some checkpoints."""
    told = "Noise, the largest: dense~order 2.000 nats"
    results = compute(inputs)
    assert results.noise == told
    assert part_of(results, ["dense", "pruned"]).noise == told
    assert part_of(results, ["pruned"]).noise == ""
