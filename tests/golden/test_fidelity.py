"""Table `fidelity` from records written by hand, with the arithmetic beside the
expectation."""

import math

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.tables.fidelity import BOUND, TABLE
from evaluator.report.figures import draw
from tests.support.records import Seen, records
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
    return TABLES["fidelity"].frame(Inputs(reduce_records(pd.concat(parts))))


def found(frame: pd.DataFrame, checkpoint: str, **equal: str) -> pd.Series:
    return only_row(
        frame,
        checkpoint=checkpoint,
        **{"task": "t", "language": "all", "group": "all", **equal},
    )


def test_means_are_over_positions(frame):
    own = found(frame, "small", along="greedy answer")
    assert (own["n"], own["positions"], own["excluded"], own["engine_error"]) == (
        3,
        5,
        1,
        0,
    )
    assert own["kld"] == pytest.approx((0.1 + 0.3 + 0.8 + 0.0 + 0.3) / 5)
    assert own["kld_reverse"] == pytest.approx(2 * 1.5 / 5)
    assert own["acceptance"] == pytest.approx(1 - 0.75 / 5)
    assert own["same_top"] == pytest.approx(4 / 5)
    assert own["top_agreement"] == pytest.approx((4 + 0.4) / 5)
    assert own["delta_nll"] == pytest.approx(1.5 / 5)
    changes = [math.exp(-1 - kld) - math.exp(-1) for kld in (0.1, 0.3, 0.8, 0.0, 0.3)]
    assert own["delta_p"] == pytest.approx(sum(changes) / 5)
    assert own["delta_p_rms"] == pytest.approx(
        math.sqrt(sum(change**2 for change in changes) / 5)
    )
    assert (own["kld_p50"], own["kld_max"]) == (pytest.approx(0.3), pytest.approx(0.8))
    # position 3.6 of 0, .1, .3, .3, .8
    assert own["kld_p90"] == pytest.approx(0.3 + 0.6 * 0.5)
    assert own[["kld_low", "kld_high"]].isna().all()
    assert (
        own["reason"] == "1 excluded (no base); 2 contexts are too few for an interval"
    )
    text = found(frame, "small", along="text", task="book")
    assert text["kld_low"] < text["kld"] < text["kld_high"]
    assert found(frame, "small", along="gold answer")["kld"] == own["kld"]


def test_the_floor_is_the_base_against_itself_and_accuracies_stand_beside_it(frame):
    floor, own = (
        found(frame, name, along="greedy answer") for name in ("dense", "small")
    )
    assert (floor["floor"], own["floor"]) == (True, False)
    assert floor["kld"] == pytest.approx(0.002 / 5)
    assert own["kld_floor"] == floor["kld"]
    assert math.isnan(floor["kld_floor"])
    own, floor = (
        found(frame, name, along="greedy answer") for name in ("small", "dense")
    )
    assert (own["accuracy"], own["mc_only_rate"]) == (0.25, pytest.approx(2 / 3))
    assert floor["accuracy"] == 0.75
    assert math.isnan(floor["mc_only_rate"])
    text = found(frame, "small", along="text", task="book")
    assert (text["n"], text["positions"], text["kld"]) == (3, 6, pytest.approx(0.9 / 6))
    assert draw(TABLE, frame) is not None
    assert draw(TABLE, frame[frame["task"] == "book"]) is not None


def test_by_language_fate_and_confidence_and_a_bound_is_called_one(frame):
    own = {"along": "greedy answer"}
    korean = found(frame, "small", language="korean", **own)
    assert (korean["n"], korean["positions"], korean["kld"]) == (
        1,
        1,
        pytest.approx(0.3),
    )
    kept, mc_only = (
        found(frame, "small", group=fate, **own) for fate in ("kept", "mc_only")
    )
    assert (kept["n"], kept["kld"]) == (1, pytest.approx(0.2))
    assert (mc_only["n"], mc_only["positions"], mc_only["kld"]) == (
        2,
        3,
        pytest.approx(1.1 / 3),
    )
    # Every second position has a confidence of 0.45, the others of 0.95.
    unsure, sure = (
        found(frame, "small", group=f"base {band}", **own)
        for band in ("0 to 0.5", "0.9 to 0.99")
    )
    assert (unsure["n"], unsure["positions"], unsure["kld"]) == (
        2,
        2,
        pytest.approx(0.15),
    )
    assert (sure["n"], sure["positions"], sure["same_top"]) == (
        3,
        3,
        pytest.approx(2 / 3),
    )
    assert found(frame, "small", group="base 0.99 to 1", **own)["positions"] == 0
    parts = [records("dense", BASE), records("small", OWN, base="dense")]
    settings = {name: {"t": {"fidelity_top": 64}} for name in ("dense", "small")}
    run = {"identity": {"task_settings": settings}}
    frame = TABLES["fidelity"].frame(Inputs(reduce_records(pd.concat(parts)), run=run))
    for name in ("dense", "small"):
        reason = found(frame, name, along="greedy answer")["reason"]
        assert reason.startswith(
            f"1 excluded (no base); {BOUND}: the likeliest 64 tokens were kept;"
        )
