"""What holds of every table: nothing is dropped, order is irrelevant, and memory
holds the comparison at hand only."""

import gc
import tracemalloc

import pandas as pd
import pytest

from evaluator.metrics import (
    TABLES,
    Inputs,
    Outcomes,
    compute_tables,
    inputs,
    reduce_records,
)
from evaluator.store.outcomes import outcome_types
from tests.support.synthetic import SETTINGS, frame_of, records_of
from tests.support.tables import select

CHECKPOINTS = ("dense", "wanda-0.5", "magnitude-0.6")


@pytest.fixture(scope="module")
def outcomes():
    assert set(CHECKPOINTS) <= set(SETTINGS)
    parts = [
        reduce_records(frame_of(records_of(name, "gazetteer", 12)))
        for name in CHECKPOINTS
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def tables(outcomes):
    return {
        name: table.frame for name, table in compute_tables(Inputs(outcomes)).items()
    }


def test_every_item_is_counted_once(tables):
    """Every item and fate is counted once and every table has counts and reasons."""
    rows = tables["accuracy"].query("language not in ('all', 'mean')")
    assert (rows["n"] + rows["excluded"] + rows["engine_error"] == 12).all()
    assert (rows["excluded"] == 1).all()
    rows = tables["fates"]
    assert (
        rows[["kept", "mc_only", "produced_only", "lost"]].sum(axis=1) == rows["n"]
    ).all()
    pooled = select(rows).set_index("checkpoint")["n"]
    by_language = rows[rows["language"] != "all"].groupby("checkpoint")["n"].sum()
    assert pooled.sort_index().tolist() == by_language.sort_index().tolist()
    for name, frame in tables.items():
        assert "reason" in frame, name
        # Of what several prompts (`dropped`) or both sides of a comparison (`anchors`)
        # measured, all others are out.
        if name not in ("price", "prompt_order", "screening"):
            assert {"excluded", "engine_error"} <= set(frame), name
        assert "n" in frame or name in ("price", "recovery_seeds", "screening"), name
    for frame in tables.values():
        for name in [
            column[:-4]
            for column in frame
            if column.endswith("_low") and column[:-4] in frame
        ]:
            known = frame[frame[f"{name}_low"].notna()]
            assert (known[f"{name}_low"] <= known[name] + 1e-9).all(), name
            assert (known[name] <= known[f"{name}_high"] + 1e-9).all(), name


def test_tables_ignore_order_and_others(outcomes, tables):
    """Tables depend neither on order nor on others and clusters move intervals alone."""
    again = compute_tables(Inputs(outcomes.sample(frac=1.0, random_state=1)))
    for name, frame in tables.items():
        pd.testing.assert_frame_equal(again[name].frame, frame, obj=name)
    pair = compute_tables(Inputs(outcomes[outcomes["checkpoint"] != "wanda-0.5"]))
    for name in ("fates", "pr_gap", "recovery"):
        alone = (
            pair[name]
            .frame.query("checkpoint == 'magnitude-0.6'")
            .reset_index(drop=True)
        )
        among = (
            tables[name].query("checkpoint == 'magnitude-0.6'").reset_index(drop=True)
        )
        # holm_p corrects over the checkpoints: it alone may know of them
        columns = [column for column in alone if column != "holm_p"]
        pd.testing.assert_frame_equal(alone[columns], among[columns], obj=name)
    items = outcomes[["task", "language", "item_id"]].drop_duplicates()
    clusters = items["item_id"].str[-1].astype(int) // 4
    items = items.assign(
        cluster=clusters, question="", context="", answers=[[]] * len(items)
    )
    query = "checkpoint == 'magnitude-0.6' and language == 'all'"
    grouped = (
        compute_tables(Inputs(outcomes, items))["pr_gap"].frame.query(query).iloc[0]
    )
    alone = tables["pr_gap"].query(query).iloc[0]
    assert grouped["delta_pr"] == alone["delta_pr"]
    assert (
        grouped["delta_pr_high"] - grouped["delta_pr_low"]
        != alone["delta_pr_high"] - alone["delta_pr_low"]
    )


ITEMS = 200


@pytest.mark.more
def test_memory_of_compared_checkpoints_alone(monkeypatch, tmp_path):
    """With outcomes in files, six further checkpoints add a fraction of what they
    add with outcomes in memory."""
    monkeypatch.setattr(inputs, "_HELD_ROWS", 2 * ITEMS)  # a checkpoint and its base
    monkeypatch.setattr(inputs, "_HELD_PAIRS", ITEMS)
    one = reduce_records(
        frame_of(records_of("dense", "gazetteer", ITEMS, languages=("english",)))
    )

    def kept(checkpoints, folder):
        tracemalloc.start()
        found = Outcomes()
        for number in range(checkpoints):
            own = one.assign(
                checkpoint=f"p{number}",
                base="p0" if number else None,
                weights_digest=f"{number}",
            )
            found.add(
                own.astype(outcome_types()),
                folder and folder / f"{checkpoints}-{number}.parquet",
            )
        given = Inputs(found)
        for name in ("accuracy", "fates", "rank"):
            assert len(TABLES[name].fill(given).frame)
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    kept(2, tmp_path)  # imports, and caches of numbers
    filed, held = (kept(9, folder) - kept(3, folder) for folder in (tmp_path, None))
    assert filed < held / 3
