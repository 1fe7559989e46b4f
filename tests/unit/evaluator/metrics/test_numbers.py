"""Every number as a cell, from records written by hand."""

from evaluator.metrics.table import numbers_of
from tests.support.records import Seen
from tests.support.tables import assert_has, only, pair

BOTH, SILENT, FAILED = (
    Seen(True, True),
    Seen(False, True),
    Seen(True, status="excluded"),
)
DENSE = {f"english/{n}": BOTH for n in range(5)} | {"english/5": FAILED}


def numbers(**more):
    tables = pair(DENSE, DENSE | more)
    return numbers_of(tables.fill(name) for name in ("accuracy", "fates", "rank"))


def test_a_number_has_its_items_interval_and_p():
    found = numbers(**{"english/0": SILENT, "english/1": SILENT, "english/2": FAILED})
    of = {"checkpoint": "p", "table": "accuracy", "probe": "greedy"}
    drop = only(found, **of, measure="drop")
    assert_has(
        drop, task="t", base="dense", format="open", group=None, value=0.5, n=4, p=0.5
    )
    assert -1 < drop["low"] < 0.5 < drop["high"] < 1
    assert only(found, **of, measure="excluded")["value"] == 2
    kept = only(found, table="fates", checkpoint="p", measure="kept_rate")
    assert_has(kept, value=0.5, n=4, p=None, probe=None)
    assert found[found["measure"] == "mcnemar_p"].empty


def test_a_reason_stays_with_its_number():
    """Two contexts give no interval: only numbers with intervals say so."""
    two = {name: DENSE[name] for name in ("english/0", "english/1", "english/5")}
    tables = pair(two, two)
    found = numbers_of([tables.fill("accuracy")])
    of = {"checkpoint": "p", "probe": "greedy"}
    told = "1 excluded (the records do not say why)"
    assert_has(only(found, **of, measure="dense_accuracy"), value=1.0, n=2, reason=told)
    drop = only(found, **of, measure="drop")
    assert_has(drop, low=None, reason=f"2 contexts are too few for an interval; {told}")
    # the row of the CSV has all reasons
    row = only(tables["accuracy"], **of)
    assert row["reason"] == f"{told}; 2 contexts are too few for an interval"
