"""A table's rows in a file are the rows in memory, and few of them are in memory at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics import long_frame
from evaluator.metrics.columns import COUNT, P_VALUE, TEXT, Column, Row, columns_of, typed_frame
from evaluator.metrics.intervals import holm
from evaluator.metrics.long_frame import Holm, filed, rows_of_checkpoints

COLUMNS = (
    *columns_of(TEXT, "task", "checkpoint", "other", "said", "nothing"),
    Column("n", COUNT),
    *columns_of(P_VALUE, "mcnemar_p", "holm_p", "mixed", "whole"),
)
CORRECTION = Holm(("task",))


def rows(many: int) -> Iterator[Row]:
    """Columns whose type only the last rows show: whole numbers with one that is not, texts with nulls."""
    for at in range(many):
        row: Row = {"task": f"t{at % 2}", "checkpoint": f"c{at // 4}", "whole": np.int64(at), "nothing": None}
        row |= {"mixed": at + (0.5 if at > 25 else 0), "mcnemar_p": None if at % 3 else at / 100}
        yield row | ({"n": at, "said": f"wörter\n {at}", "other": f"c{at // 4 + 1}"} if at % 5 == 0 else {})


def corrected(many: int) -> list[Row]:
    found = list(rows(many))
    for task in ("t0", "t1"):
        tested = [row for row in found if row["task"] == task and row["mcnemar_p"] is not None]
        for row, p in zip(tested, holm([row["mcnemar_p"] for row in tested]), strict=True):
            row["holm_p"] = p
    return found


@pytest.mark.parametrize("held", [1, 7, 30, 31, 500])
def test_rows_in_a_file_are_those_in_memory(monkeypatch, held):
    monkeypatch.setattr(long_frame, "HELD_ROWS", held)
    whole = typed_frame(COLUMNS, corrected(30))
    found = filed(COLUMNS, rows(30), (CORRECTION,))
    pd.testing.assert_frame_equal(found.frame, whole)
    assert len(found) == 30
    parts = list(found.parts())
    assert max(map(len, parts)) <= held
    assert [dict(part.dtypes) for part in parts] == [dict(whole.dtypes)] * len(parts)
    picked = found.select(lambda part: part[part["n"].notna()])
    pd.testing.assert_frame_equal(picked.reset_index(drop=True), whole[whole["n"].notna()].reset_index(drop=True))
    for names in (["c0"], ["c1", "c2", "c7"], []):
        pd.testing.assert_frame_equal(found.of(names).frame, rows_of_checkpoints(whole, names))


def test_no_more_rows_are_held_than_a_part_has(monkeypatch):
    monkeypatch.setattr(long_frame, "HELD_ROWS", 10)

    class Held(dict):  # a dictionary that can be watched
        pass

    alive: weakref.WeakSet[Held] = weakref.WeakSet()
    Held.__hash__ = object.__hash__  # type: ignore[assignment]
    most = 0

    def watched() -> Iterator[Row]:
        nonlocal most
        for row in rows(1000):
            one = Held(row)
            alive.add(one)
            most = max(most, len(alive))
            yield one

    found = filed(COLUMNS, watched(), (CORRECTION,))
    assert most <= 2
    seen = []
    parts: list[weakref.ref[pd.DataFrame]] = []
    for part in found.parts():
        parts.append(weakref.ref(part))
        seen.append(len(part))
        del part
        gc.collect()
        assert sum(each() is not None for each in parts) <= 2  # one, and the last, which is not in the file
    assert (sum(seen), max(seen)) == (1000, 10)


def test_only_the_parts_that_may_name_a_checkpoint_are_read(monkeypatch):
    monkeypatch.setattr(long_frame, "HELD_ROWS", 4)
    found = filed(COLUMNS[:3], ({"task": "t", "checkpoint": f"c{at // 4}", "other": "x"} for at in range(40)))
    read = []
    load = long_frame.json.loads
    monkeypatch.setattr(long_frame.json, "loads", lambda text: read.append(text) or load(text))
    assert len(found.of(["c3", "x"])) == 4
    assert len(read) == 1
    assert len(found.of(["c3"])) == 0


def test_a_column_that_is_not_declared_is_refused():
    with pytest.raises(ValueError, match="no column and no kind is declared for more"):
        filed(COLUMNS, [{"task": "t", "more": 1}])


def test_no_rows_are_one_empty_part():
    found = filed(COLUMNS, (), (CORRECTION,))
    assert (len(found), [len(part) for part in found.parts()]) == (0, [0])
    pd.testing.assert_frame_equal(found.frame, typed_frame(COLUMNS, ()))


def test_the_file_goes_with_the_rows(monkeypatch):
    monkeypatch.setattr(long_frame, "HELD_ROWS", 4)
    found = filed(COLUMNS, rows(9))
    file = found._stored._file
    del found
    gc.collect()
    assert file.closed


def test_types_of_all_values_are_those_of_a_frame():
    values = [[1, 2.5], [1, None], [True, np.nan], ["a", None], [None], [np.float64(2), 1], [1, 2], [True, False]]
    for each in values:
        column = (Column("x", P_VALUE),)
        known = long_frame.types_of({"x": each})
        made = [long_frame.frame_of(column, {"x": [value]}, known) for value in each]
        pd.testing.assert_frame_equal(pd.concat(made, ignore_index=True), pd.DataFrame({"x": each}))
