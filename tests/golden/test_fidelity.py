"""Table `fidelity` from records written by hand, with the arithmetic beside the
expectation."""

import math

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.fidelity import BOUND, TABLE
from evaluator.report.figures import draw
from tests.support.records import Seen, records
from tests.support.tables import has
from tests.support.tables import only as only_row

BASE = {
    "english/0": Seen(True, True, fidelity=(0.0, 0.0)), "english/1": Seen(True, True, fidelity=(0.002, 0.0)),
    "korean/0": Seen(True, True, fidelity=(0.0,)), "korean/1": Seen(False, True, fidelity="no base"),
}  # fmt: skip
OWN = {
    "english/0": Seen(True, True, fidelity=(0.1, 0.3)), "english/1": Seen(False, True, fidelity=(0.8, 0.0)),
    "korean/0": Seen(False, True, fidelity=(0.3,)), "korean/1": Seen(False, True, fidelity="no base"),
}  # fmt: skip


@pytest.fixture(scope="module")
def frame():
    parts = [records("dense", BASE), records("small", OWN, base="dense")]
    text = {
        f"text/{n}": Seen(window=(-9.0, 2), fidelity=(0.1 * n, 0.2)) for n in range(3)
    }
    parts += [
        records("dense", text, task="book"),
        records("small", text, base="dense", task="book"),
    ]
    return TABLES["fidelity"].fill(Inputs(reduce_records(pd.concat(parts)))).frame


def found(frame: pd.DataFrame, checkpoint: str, **equal: str) -> pd.Series:
    return only_row(
        frame,
        checkpoint=checkpoint,
        **{"task": "t", "language": "all", "group": "all", **equal},
    )


def test_means_are_over_positions(frame):
    own = found(frame, "small", along="greedy answer")
    has(
        own,
        n=3,
        positions=5,
        excluded=1,
        engine_error=0,
        kld=(0.1 + 0.3 + 0.8 + 0.0 + 0.3) / 5,
        kld_reverse=2 * 1.5 / 5,
        acceptance=1 - 0.75 / 5,
        same_top=4 / 5,
        top_agreement=(4 + 0.4) / 5,
        delta_nll=1.5 / 5,
    )
    changes = [math.exp(-1 - kld) - math.exp(-1) for kld in (0.1, 0.3, 0.8, 0.0, 0.3)]
    has(
        own,
        delta_p=sum(changes) / 5,
        delta_p_rms=math.sqrt(sum(change**2 for change in changes) / 5),
        kld_p50=pytest.approx(0.3),  # stored in float32
        kld_max=pytest.approx(0.8),
    )
    # position 3.6 of 0, .1, .3, .3, .8
    has(
        own,
        kld_p90=pytest.approx(0.3 + 0.6 * 0.5),
        kld_low=None,
        kld_high=None,
        reason="1 excluded (no base); 2 contexts are too few for an interval",
    )
    text = found(frame, "small", along="text", task="book")
    assert text["kld_low"] < text["kld"] < text["kld_high"]
    assert found(frame, "small", along="gold answer")["kld"] == own["kld"]


def test_fidelity_floor_is_base_against_itself(frame):
    """The floor is the base against itself and accuracies stand beside it."""
    floor, own = (
        found(frame, name, along="greedy answer") for name in ("dense", "small")
    )
    assert (floor["floor"], own["floor"]) == (True, False)
    has(floor, kld=0.002 / 5)
    assert own["kld_floor"] == floor["kld"]
    assert math.isnan(floor["kld_floor"])
    own, floor = (
        found(frame, name, along="greedy answer") for name in ("small", "dense")
    )
    has(own, accuracy=0.25, mc_only_rate=2 / 3)
    assert floor["accuracy"] == 0.75
    assert math.isnan(floor["mc_only_rate"])
    text = found(frame, "small", along="text", task="book")
    has(text, n=3, positions=6, kld=0.9 / 6)
    assert draw(TABLE, frame) is not None
    assert draw(TABLE, frame[frame["task"] == "book"]) is not None


def test_fidelity_by_language_fate_and_confidence(frame):
    """By language fate and confidence and a bound is called one."""
    own = {"along": "greedy answer"}
    korean = found(frame, "small", language="korean", **own)
    has(korean, n=1, positions=1, kld=0.3)
    kept, mc_only = (
        found(frame, "small", group=fate, **own) for fate in ("kept", "mc_only")
    )
    has(kept, n=1, kld=0.2)
    has(mc_only, n=2, positions=3, kld=1.1 / 3)
    # Every second position has a confidence of 0.45, the others of 0.95.
    unsure, sure = (
        found(frame, "small", group=f"base {band}", **own)
        for band in ("0 to 0.5", "0.9 to 0.99")
    )
    has(unsure, n=2, positions=2, kld=pytest.approx(0.15))
    has(sure, n=3, positions=3, same_top=2 / 3)
    assert found(frame, "small", group="base 0.99 to 1", **own)["positions"] == 0
    parts = [records("dense", BASE), records("small", OWN, base="dense")]
    settings = {name: {"t": {"fidelity_top": 64}} for name in ("dense", "small")}
    run = {"identity": {"task_settings": settings}}
    frame = (
        TABLES["fidelity"].fill(Inputs(reduce_records(pd.concat(parts)), run=run)).frame
    )
    for name in ("dense", "small"):
        reason = found(frame, name, along="greedy answer")["reason"]
        assert reason.startswith(
            f"1 excluded (no base); {BOUND}: the likeliest 64 tokens were kept;"
        )
