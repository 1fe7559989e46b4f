"""Records to outcomes: what counts as measured, who wins a choice, and that cutting
the records does not matter."""

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics import Inputs, Outcomes, empty_outcomes, reduce_records
from evaluator.metrics import inputs as looked_at
from evaluator.metrics.inputs import ITEM
from evaluator.report.results import compute
from evaluator.store.outcomes import Recent, outcome_types, plain
from tests.support.records import Seen, records
from tests.support.synthetic import frame_of, records_of


def outcome(seen):
    return reduce_records(records("m", {"english/1": seen})).iloc[0]


def test_one_row_per_item():
    reduced = reduce_records(
        records("m", {"english/1": Seen(greedy=True), "english/2": Seen(greedy=False)})
    )
    assert list(reduced) == list(outcome_types())
    assert (
        reduced.dtypes.astype(str).to_dict()
        == empty_outcomes().dtypes.astype(str).to_dict()
    )
    assert reduced["produced"].tolist() == [True, False]
    assert reduce_records(reduced.iloc[:0]).equals(empty_outcomes())
    row = outcome(Seen(greedy=True, status="truncated", truncated=True))
    assert (row["greedy_status"], row["produced"], row["truncated"]) == (
        "truncated",
        True,
        True,
    )
    row = outcome(Seen(beams=[False, True, True], samples=[False, False]))
    assert (row["beams"], row["beam_hit"]) == (3, True)
    assert (row["samples"], row["sample_hit"], row["sample_hits"]) == (2, False, 0)
    assert (
        row[
            [
                "greedy_status",
                "choice_status",
                "produced",
                "recognised",
                "rank",
                "margin",
            ]
        ]
        .isna()
        .all()
    )


@pytest.mark.parametrize("status", ["excluded", "engine_error"])
def test_unmeasured_is_null(status):
    row = outcome(
        Seen(
            greedy=True,
            choice=True,
            beams=[True],
            samples=[True],
            rank=1,
            margin=0.0,
            status=status,
        )
    )
    for probe in ("greedy", "choice", "beam", "sample", "rank"):
        assert row[f"{probe}_status"] == status
    assert (
        row[["produced", "recognised", "beam_hit", "sample_hit", "rank", "margin"]]
        .isna()
        .all()
    )


def choice(scores):
    """Options as text -> (summed log-probability, number of tokens); the first is
    the gold one."""
    frame = records("m", {"english/1": Seen(choice=True, options=len(scores))})
    frame["option_text"] = list(scores)
    frame["logprob"] = [score for score, _ in scores.values()]
    frame["token_ids"] = [tuple(range(tokens)) for _, tokens in scores.values()]
    return reduce_records(frame).iloc[0]


def test_winners_of_a_choice():
    """By sum, by token and by byte; a single option is no choice."""
    # sums -4 < -3; per token -2 > -3; per byte -0.5 > -1.5
    row = choice({"abcdefgh": (-4.0, 2), "ab": (-3.0, 1)})
    assert (
        row["recognised"],
        row["recognised_per_token"],
        row["recognised_per_byte"],
    ) == (False, True, True)
    # -3 > -3.2; -1 > -1.6; -0.5 > -0.8 (six bytes, four bytes)
    row = choice({"кал": (-3.0, 3), "abcd": (-3.2, 2)})
    assert (
        row["recognised"],
        row["recognised_per_token"],
        row["recognised_per_byte"],
    ) == (True, True, True)
    assert not choice({"a": (-1.0, 1), "b": (-1.0, 1), "c": (-9.0, 1)})["recognised"]
    alone = choice({"a": (-1.0, 1)})
    assert pd.isna(alone["recognised"])
    assert alone["choice_status"] == "engine_error"
    frame = records("m", {"english/1": Seen(choice=True)})
    frame.loc[2, ["status", "logprob"]] = ["engine_error", np.nan]
    row = reduce_records(frame).iloc[0]
    assert row["choice_status"] == "engine_error"
    assert pd.isna(row["recognised"])


def test_order_and_cut_change_nothing():
    frame = frame_of(records_of("wanda-0.6", "gazetteer", 5))
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


def outcomes(checkpoint, *, said="Rome", right=3, **columns):
    six = [
        Seen(greedy=number < right, choice=number % 2 == 0, said=said)
        for number in range(6)
    ]
    seen = {
        f"{language}/{number}": each
        for language in LANGUAGES
        for number, each in enumerate(six)
    }
    return reduce_records(records(checkpoint, seen).assign(**columns))


def run():
    return [
        outcomes("dense", right=5),
        *(outcomes(f"p{n}", right=n, base="dense", method="wanda") for n in range(4)),
    ]


def in_files(folder, parts):
    found = Outcomes()
    for number, each in enumerate(parts):
        found.add(each, folder / f"{number}.parquet")
    return found


def test_outcomes_in_files(tmp_path):
    held, filed = Outcomes(), in_files(tmp_path, run())
    for each in run():
        held.add(each)
    for number in range(4):
        pd.testing.assert_frame_equal(filed[f"p{number}", "t"], held[f"p{number}", "t"])
        pd.testing.assert_frame_equal(held[f"p{number}", "t"], plain(run()[1 + number]))
    assert filed["nobody", "t"].empty
    assert list(filed["nobody", "t"]) == list(outcome_types())
    pd.testing.assert_frame_equal(filed.asked, held.asked)
    assert filed.asked["item"].tolist() == list(range(12))
    assert list(pd.read_parquet(tmp_path / "1.parquet")) == list(outcome_types())


def test_tables_of_outcomes_in_files(monkeypatch, tmp_path):
    parts = run()[:3]
    whole = compute(Inputs(pd.concat(parts, ignore_index=True)), {})
    # one checkpoint, and no comparison beside the last one
    monkeypatch.setattr(looked_at, "_HELD_ROWS", 15)
    monkeypatch.setattr(looked_at, "_HELD_PAIRS", 15)
    found = compute(Inputs(in_files(tmp_path, parts)), {})
    assert found.tables.keys() == whole.tables.keys()
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(table.frame, whole.tables[name].frame)
        assert (table.note, table.lacks) == (
            whole.tables[name].note,
            whole.tables[name].lacks,
        )
    assert len(whole.tables["fates"].frame) == 6
    assert found.verdicts == whole.verdicts


def test_comparisons_and_any_text(tmp_path):
    dense, pruned = (
        outcomes("dense", right=5),
        outcomes("p", base="dense", method="wanda"),
    )
    dense, pruned = (
        dense[dense["item_id"] != "1"],
        pruned[~pruned["item_id"].isin(["0", "4"])],
    )
    inputs = Inputs(pd.concat([dense, pruned], ignore_index=True))
    (comparison,) = inputs.comparisons().values()
    own, base = inputs.outcomes_of("p", "t"), inputs.outcomes_of("dense", "t")
    joined = own.merge(
        base, on=list(ITEM), suffixes=("_pruned", "_dense"), validate="one_to_one"
    )
    assert len(joined) == 2 * 3
    pd.testing.assert_frame_equal(comparison.outcomes, joined)
    strange = "a\u0000b, 'ü', \ud7ff, \U0001f600\n"
    piece = outcomes("dense").assign(greedy_why=[strange, None] * 6, sample_why=None)
    filed = Outcomes()
    filed.add(piece.astype(outcome_types()), tmp_path / "dense.parquet")
    assert set(filed["dense", "t"]["greedy_why"].dropna()) == {strange}
    assert filed["dense", "t"]["sample_why"].isna().all()


def test_recent_frames_are_held():
    made: list[str] = []

    def make(name):
        made.append(name)
        return pd.DataFrame({"x": range(4)})

    recent = Recent(make, 10)
    for name in "abab":
        assert len(recent[name]) == 4
    assert made == ["a", "b"]
    assert len(recent["c"]) == 4
    assert set(recent._held) == {"b", "c"}
    assert len(recent["a"]) == 4
    assert made == ["a", "b", "c", "a"]
