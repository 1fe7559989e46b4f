"""Outcomes in pieces: those that lie in files are those that are held, and every table is the same."""

from pathlib import Path

import pandas as pd
import pytest

from evaluator.metrics import Inputs, Pieces, compute, compute_tables, empty_outcomes, long_frame, reduce_records
from evaluator.metrics import inputs as looked_at
from evaluator.metrics.inputs import ITEM
from evaluator.metrics.outcomes import outcome_types
from evaluator.metrics.pieces import Recent, plain
from evaluator.store.csv_files import csv_parts
from tests.support.records import Seen, records

LANGUAGES = ("english", "thai")


def outcomes(checkpoint: str, *, said: str = "Rome", right: int = 3, **columns: object) -> pd.DataFrame:
    seen = {
        f"{language}/{number}": Seen(greedy=number < right, choice=number % 2 == 0, said=said)
        for language in LANGUAGES
        for number in range(6)
    }
    return reduce_records(records(checkpoint, seen).assign(**columns))


def run() -> list[pd.DataFrame]:
    return [outcomes("dense", right=5), *(outcomes(f"p{n}", right=n, base="dense", method="wanda") for n in range(4))]


def test_pieces_in_files_are_the_pieces_in_memory():
    held, filed = Pieces(), Pieces(held_rows=0)
    for piece in run():
        held.add(piece)
        filed.add(piece)
    for number in range(4):
        pd.testing.assert_frame_equal(filed[f"p{number}", "t"], held[f"p{number}", "t"])
        pd.testing.assert_frame_equal(held[f"p{number}", "t"], plain(run()[1 + number]))
    assert filed["nobody", "t"].empty
    assert list(filed["nobody", "t"]) == list(outcome_types())
    pd.testing.assert_frame_equal(filed.asked, held.asked)
    assert filed.asked["item"].tolist() == list(range(12))


def test_tables_do_not_depend_on_where_pieces_are(monkeypatch):
    whole = compute_tables(Inputs(pd.concat(run(), ignore_index=True)))
    monkeypatch.setattr(looked_at, "_HELD_ROWS", 15)  # one piece, and no comparison beside the last one
    monkeypatch.setattr(looked_at, "_HELD_PAIRS", 15)
    filed = Pieces(held_rows=20)
    for piece in run():
        filed.add(piece)
    found = compute_tables(Inputs(filed))
    assert found.keys() == whole.keys()
    for name, table in found.items():
        pd.testing.assert_frame_equal(table.frame, whole[name].frame)
    assert len(whole["fates"].frame) == 12


def test_a_comparison_is_the_join_of_both_checkpoints_by_item():
    dense, pruned = outcomes("dense", right=5), outcomes("p", base="dense", method="wanda")
    dense, pruned = dense[dense["item_id"] != "1"], pruned[~pruned["item_id"].isin(["0", "4"])]
    inputs = Inputs(pd.concat([dense, pruned], ignore_index=True))
    (comparison,) = inputs.comparisons().values()
    own, base = inputs.outcomes_of("p", "t"), inputs.outcomes_of("dense", "t")
    joined = own.merge(base, on=list(ITEM), suffixes=("_pruned", "_dense"), validate="one_to_one")
    assert len(joined) == 2 * 3
    pd.testing.assert_frame_equal(comparison.outcomes, joined)


def test_texts_that_are_null_everywhere_or_hold_anything_come_back():
    strange = "a\u0000b, 'ü', \ud7ff, \U0001f600\n"
    piece = outcomes("dense").assign(greedy_why=[strange, None] * 6, sample_why=None)
    piece = piece.astype(outcome_types())
    back = Pieces(piece, held_rows=0)["dense", "t"]
    assert set(back["greedy_why"].dropna()) == {strange}
    assert back["sample_why"].isna().all()


def test_a_pair_comes_once():
    pieces = Pieces(outcomes("dense"))
    with pytest.raises(ValueError, match="checkpoint 'dense', task 't': a second piece"):
        pieces.add(outcomes("dense"))


def test_files_go_with_the_pieces():
    pieces = Pieces(outcomes("dense"), held_rows=0)
    (folder,) = (Path(each.parent) for each in pieces._pieces.values() if isinstance(each, Path))
    assert folder.is_dir()
    del pieces
    assert not folder.exists()


def test_no_outcomes_are_no_pieces():
    assert Pieces(empty_outcomes()).first == []
    assert Inputs(empty_outcomes()).checkpoints == []


def test_the_frames_used_last_are_held():
    made: list[str] = []

    def make(name: str) -> pd.DataFrame:
        made.append(name)
        return pd.DataFrame({"x": range(4)})

    recent = Recent(make, 10)
    for name in "abab":
        assert len(recent[name]) == 4
    assert made == ["a", "b"]
    assert len(recent["c"]) == 4
    assert set(recent) == {"b", "c"}
    assert len(recent["a"]) == 4
    assert made == ["a", "b", "c", "a"]


def test_tables_and_verdicts_do_not_depend_on_how_many_rows_are_held(monkeypatch):
    whole = compute(Inputs(pd.concat(run(), ignore_index=True)), {})
    monkeypatch.setattr(long_frame, "HELD_ROWS", 3)
    found = compute(Inputs(pd.concat(run(), ignore_index=True)), {})
    assert len(list(found.tables["accuracy"].rows.parts())) > 10
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(table.frame, whole.tables[name].frame)
        assert (table.note, table.lacks) == (whole.tables[name].note, whole.tables[name].lacks)
    pd.testing.assert_frame_equal(found.headline, whole.headline)
    assert found.verdicts == whole.verdicts
    assert found.sentence == whole.sentence
    for name, parts in found.files.items():
        assert b"".join(csv_parts(parts)) == b"".join(csv_parts(whole.files[name]))
