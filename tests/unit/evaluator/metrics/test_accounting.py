"""What holds of every table: nothing is dropped, and order is irrelevant."""

import pandas as pd
import pytest

from evaluator.metrics import Inputs, compute_tables, reduce_records
from tests.support.synthetic import frame_of, records_of
from tests.support.tables import Tables, assert_has

NOT_ITEMS = ("price",)


@pytest.fixture(scope="module")
def outcomes():
    parts = []
    for name in ("dense", "wanda-0.6"):
        asked = records_of(name, "gazetteer", 12, languages=("english", "korean"))
        parts.append(frame_of(asked))
    return reduce_records(pd.concat(parts))


@pytest.fixture(scope="module")
def tables(outcomes):
    return Tables(Inputs(outcomes))


def test_every_item_is_counted_once(tables):
    rows = tables["accuracy"].query("language not in ('all', 'mean')")
    assert_has(rows, excluded=[1] * len(rows))
    assert (rows["n"] + rows["excluded"] + rows["engine_error"] == 12).all()
    rows = tables["fates"]
    fates = rows[["kept", "mc_only", "produced_only", "lost"]].sum(axis=1)
    assert (fates == rows["n"]).all()
    pooled = rows["language"] == "all"
    parts = [rows[here].groupby("checkpoint")["n"].sum() for here in (pooled, ~pooled)]
    pd.testing.assert_series_equal(*parts)
    for name, frame in tables.items():
        if name not in NOT_ITEMS:
            assert {"excluded", "engine_error", "reason"} <= set(frame), name


def test_every_interval_holds_its_number(tables):
    for frame in tables.values():
        for low in frame.filter(regex="_low$"):
            name = low.removesuffix("_low")
            known = frame[frame[low].notna()]
            assert (known[low] <= known[name] + 1e-9).all(), name
            assert (known[name] <= known[f"{name}_high"] + 1e-9).all(), name


def test_tables_ignore_order(outcomes, tables):
    again = compute_tables(Inputs(outcomes.sample(frac=1.0, random_state=1)))
    for name, frame in tables.items():
        pd.testing.assert_frame_equal(again[name].frame, frame, obj=name)


def test_clusters_move_intervals_alone(outcomes, tables):
    items = outcomes[["task", "language", "item_id"]].drop_duplicates()
    clusters = items["item_id"].str[-1].astype(int) // 4
    grouped = Tables(Inputs(outcomes, items.assign(cluster=clusters)))["pr_gap"]
    alone = tables["pr_gap"]
    assert_has(grouped, delta_pr=alone["delta_pr"].tolist())
    assert (grouped["delta_pr_low"] != alone["delta_pr_low"]).any()
