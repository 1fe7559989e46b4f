"""Records to outcomes: what counts as measured, who wins a choice, and that cutting
the records does not matter."""

from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics import Inputs, Outcomes, empty_outcomes, reduce_records
from evaluator.metrics import inputs as looked_at
from evaluator.report.results import compute
from evaluator.store import outcomes as stored
from evaluator.store.outcomes import outcome_types
from tests.support.records import Seen, records
from tests.support.synthetic import frame_of, records_of


def outcome(seen):
    return reduce_records(records("m", {"english/1": seen})).iloc[0]


PROBES = ("greedy", "choice", "beam", "sample", "rank")
MEASURES = ["produced", "recognised", "beam_hit", "sample_hit", "rank", "margin"]


def test_one_row_per_item():
    seen = {"english/1": Seen(greedy=True), "english/2": Seen(greedy=False)}
    reduced = reduce_records(records("m", seen))
    assert list(reduced) == list(outcome_types())
    assert reduced.dtypes.equals(empty_outcomes().dtypes)
    assert reduced["produced"].tolist() == [True, False]
    assert reduce_records(reduced.iloc[:0]).equals(empty_outcomes())
    row = outcome(Seen(greedy=True, status="truncated", truncated=True))
    assert row["greedy_status"] == "truncated"
    assert (row["produced"], row["truncated"]) == (True, True)
    row = outcome(Seen(beams=[False, True, True], samples=[False, False]))
    assert (row["beams"], row["beam_hit"]) == (3, True)
    assert (row["samples"], row["sample_hit"], row["sample_hits"]) == (2, False, 0)
    absent = ["greedy_status", "choice_status", "produced", "recognised", "rank"]
    assert row[absent].isna().all()


@pytest.mark.parametrize("status", ["excluded", "engine_error"])
def test_unmeasured_is_null(status):
    right = {"greedy": True, "choice": True, "beams": [True], "samples": [True]}
    row = outcome(Seen(**right, rank=1, margin=0.0, status=status))
    assert {row[f"{probe}_status"] for probe in PROBES} == {status}
    assert row[MEASURES].isna().all()


def choice(scores):
    """Options as text -> (summed log-probability, number of tokens); the first is
    the gold one."""
    frame = records("m", {"english/1": Seen(choice=True, options=len(scores))})
    frame["option_text"] = list(scores)
    frame["logprob"] = [score for score, _ in scores.values()]
    frame["token_ids"] = [tuple(range(tokens)) for _, tokens in scores.values()]
    return reduce_records(frame).iloc[0]


@pytest.mark.parametrize(
    ("scores", "wins"),
    [
        # sums -4 < -3; per token -2 > -3; per byte -0.5 > -1.5
        ({"abcdefgh": (-4.0, 2), "ab": (-3.0, 1)}, [False, True, True]),
        # -3 > -3.2; -1 > -1.6; -0.5 > -0.8 (six bytes, four bytes)
        ({"кал": (-3.0, 3), "abcd": (-3.2, 2)}, [True, True, True]),
        # a tie
        ({"a": (-1.0, 1), "b": (-1.0, 1), "c": (-9.0, 1)}, [False, False, False]),
    ],
)
def test_winners_of_a_choice(scores, wins):
    """By sum, by token and by byte."""
    names = ["recognised", "recognised_per_token", "recognised_per_byte"]
    assert choice(scores)[names].tolist() == wins


def test_failed_choice_has_no_winner():
    """A single option is no choice; nor is one that lacks a score."""
    frame = records("m", {"english/1": Seen(choice=True)})
    frame.loc[2, ["status", "logprob"]] = ["engine_error", np.nan]
    for row in (choice({"a": (-1.0, 1)}), reduce_records(frame).iloc[0]):
        assert pd.isna(row["recognised"])
        assert row["choice_status"] == "engine_error"


def test_order_and_cut_change_nothing():
    languages = ("english", "korean")
    frame = frame_of(records_of("wanda-0.6", "gazetteer", 4, languages=languages))
    whole = reduce_records(frame)
    shuffled = reduce_records(frame.sample(frac=1.0, random_state=3))
    parts = pd.concat(
        [reduce_records(part) for _, part in frame.groupby("item_id")],
        ignore_index=True,
    )
    pd.testing.assert_frame_equal(whole, shuffled)
    order = ["checkpoint", "task", "language", "item_id"]
    pd.testing.assert_frame_equal(whole, parts.sort_values(order, ignore_index=True))


LANGUAGES = ("english", "thai")


def outcomes(checkpoint, *, right=3, **columns):
    seen = {}
    for language, number in product(LANGUAGES, range(6)):
        item = Seen(greedy=number < right, choice=number % 2 == 0, said="Rome")
        seen[f"{language}/{number}"] = item
    return reduce_records(records(checkpoint, seen).assign(**columns))


@cache
def run():
    pruned = {"base": "dense", "method": "wanda"}
    parts = [outcomes(f"p{n}", right=n, **pruned) for n in range(2)]
    return [outcomes("dense", right=5), *parts]


def in_files(folder, parts):
    found = Outcomes()
    for number, each in enumerate(parts):
        found.add(each, folder / f"{number}.parquet")
    return found


@pytest.mark.more
def test_tables_of_outcomes_in_files(monkeypatch, tmp_path):
    parts = run()
    whole = compute(Inputs(pd.concat(parts, ignore_index=True)))
    # one checkpoint, and no comparison beside the last one
    monkeypatch.setattr(looked_at, "_HELD_ROWS", 15)
    monkeypatch.setattr(looked_at, "_HELD_PAIRS", 15)
    monkeypatch.setattr(stored, "HELD_ROWS", 15)
    found = compute(Inputs(in_files(tmp_path, parts)))
    assert found.tables.keys() == whole.tables.keys()
    for name, table in found.tables.items():
        expected = whole.tables[name]
        pd.testing.assert_frame_equal(table.frame, expected.frame)
        assert (table.note, table.lacks) == (expected.note, expected.lacks)
    assert len(whole.tables["fates"].frame) == 6
    assert found.verdicts == whole.verdicts
