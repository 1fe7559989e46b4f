"""Table `fidelity` from records written by hand, with the arithmetic beside the
expectation."""

import math

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.fidelity import BOUND, TABLE
from evaluator.report.figures import draw_each
from tests.support.records import Seen, records
from tests.support.tables import assert_has
from tests.support.tables import only as only_row

BASE = {
    "english/0": Seen(True, True, fidelity=(0.0, 0.0)),
    "english/1": Seen(True, True, fidelity=(0.002, 0.0)),
    "korean/0": Seen(True, True, fidelity=(0.0,)),
    "korean/1": Seen(False, True, fidelity="no base"),
}
OWN = {
    "english/0": Seen(True, True, fidelity=(0.1, 0.3)),
    "english/1": Seen(False, True, fidelity=(0.8, 0.0)),
    "korean/0": Seen(False, True, fidelity=(0.3,)),
    "korean/1": Seen(False, True, fidelity="no base"),
}
PARTS = [records("dense", BASE), records("small", OWN, base="dense")]


@pytest.fixture(scope="module")
def frame():
    text = {}
    for n in range(3):
        text[f"text/{n}"] = Seen(window=(-9.0, 2), fidelity=(0.1 * n, 0.2))
    base = records("dense", text, task="book")
    own = records("small", text, base="dense", task="book")
    parts = pd.concat([*PARTS, base, own])
    return TABLES["fidelity"].fill(Inputs(reduce_records(parts))).frame


def found(frame: pd.DataFrame, checkpoint: str, **equal: str) -> pd.Series:
    usual = {"task": "t", "along": "greedy answer", "group": "all"}
    return only_row(frame, checkpoint=checkpoint, **(usual | equal))


def test_means_are_over_positions(frame):
    own = found(frame, "small")
    assert_has(own, n=3, positions=5, excluded=1, engine_error=0, same_top=4 / 5)
    assert_has(own, kld=(0.1 + 0.3 + 0.8 + 0.0 + 0.3) / 5, kld_reverse=2 * 1.5 / 5)
    assert_has(
        own, acceptance=1 - 0.75 / 5, top_agreement=(4 + 0.4) / 5, delta_nll=1.5 / 5
    )
    changes = [math.exp(-1 - kld) - math.exp(-1) for kld in (0.1, 0.3, 0.8, 0.0, 0.3)]
    squares = sum(change**2 for change in changes)
    assert_has(own, delta_p=sum(changes) / 5, delta_p_rms=math.sqrt(squares / 5))
    # stored in float32; position 3.6 of 0, .1, .3, .3, .8
    for name, value in (("50", 0.3), ("90", 0.3 + 0.6 * 0.5)):
        assert own[f"kld_p{name}"] == pytest.approx(value)
    assert own["kld_max"] == pytest.approx(0.8)
    why = "1 excluded (no base); 2 contexts are too few for an interval"
    assert_has(own, kld_low=None, kld_high=None, reason=why)
    text = found(frame, "small", along="text", task="book")
    assert_has(text, n=3, positions=6, kld=0.9 / 6)
    assert text["kld_low"] < text["kld"] < text["kld_high"]
    assert found(frame, "small", along="gold answer")["kld"] == own["kld"]


def test_fidelity_floor_is_base_against_itself(frame):
    """The floor is the base against itself and accuracies stand beside it."""
    floor, own = found(frame, "dense"), found(frame, "small")
    assert_has(floor, floor=True, kld=0.002 / 5, kld_floor=None)
    assert_has(floor, accuracy=0.75, mc_only_rate=None)
    assert_has(own, floor=False, kld_floor=0.002 / 5, accuracy=0.25, mc_only_rate=2 / 3)
    assert draw_each(TABLE, frame)
    assert draw_each(TABLE, frame[frame["task"] == "book"])


def test_fidelity_by_language_fate_and_confidence(frame):
    assert_has(found(frame, "small", language="korean"), n=1, positions=1, kld=0.3)
    assert_has(found(frame, "small", group="kept"), n=1, kld=0.2)
    assert_has(found(frame, "small", group="mc_only"), n=2, positions=3, kld=1.1 / 3)
    # Every second position has a confidence of 0.45, the others of 0.95.
    unsure = found(frame, "small", group="base 0 to 0.5")
    assert_has(unsure, n=2, positions=2)
    assert unsure["kld"] == pytest.approx(0.15)
    sure = found(frame, "small", group="base 0.9 to 0.99")
    assert_has(sure, n=3, positions=3, same_top=2 / 3)
    assert_has(found(frame, "small", group="base 0.99 to 1"), positions=0)


def test_bound_of_kept_tokens_is_named():
    settings = {"dense": {"t": {"fidelity_top": 64}}}
    run = {"identity": {"task_settings": settings}}
    inputs = Inputs(reduce_records(pd.concat(PARTS)), run=run)
    frame = TABLES["fidelity"].fill(inputs).frame
    why = f"1 excluded (no base); {BOUND}: the likeliest 64 tokens were kept;"
    for name in ("dense", "small"):
        assert found(frame, name)["reason"].startswith(why)
