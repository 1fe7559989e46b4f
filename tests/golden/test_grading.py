"""Both grades of an answer: which one tables follow, and what table `grading`
counts, worked out by hand."""

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from tests.support.records import Seen, numbered, records
from tests.support.tables import only

# Of 40 items in English, greedy is right on 30 to the strict rule, and on 36 to the
# paper's; of 2 beams each one.
SEEN = numbered(
    english=[
        Seen(greedy=number < 30, beams=(number < 30, False)) for number in range(40)
    ]
)


def graded(rule: str | None, last: int = 36) -> pd.DataFrame:
    """Records with both grades: items 31 to `last` have answers that only the
    paper's rule counts."""
    frame = records("m", SEEN)
    number = frame["item_id"].str.extract(r"(\d+)")[0].astype(int)
    loose = number.between(31, last) & (frame["index"] == 0)
    frame.loc[loose, "text"] = "=186363\n" + number[loose].astype(str)
    return frame.assign(
        grading=rule, contains_paper=frame["contains"].astype(bool) | loose
    )


@pytest.mark.parametrize(("rule", "right"), [("strict", 30), ("paper", 36), (None, 30)])
def test_outcomes_follow_the_runs_rule(rule, right):
    outcomes = reduce_records(graded(rule))
    assert outcomes["produced"].sum() == outcomes["beam_hits"].sum() == right
    assert outcomes["greedy_strict"].sum() == 30
    assert outcomes["greedy_paper"].sum() == 36
    accuracy = TABLES["accuracy"].fill(Inputs(outcomes)).frame
    assert only(accuracy, probe="greedy")["accuracy"] == right / 40


def test_table_counts_what_only_paper_counts():
    filled = TABLES["grading"].fill(Inputs(reduce_records(graded("paper"))))
    greedy, beam = (only(filled.frame, probe=probe) for probe in ("greedy", "beam"))
    assert [greedy[name] for name in ("n", "strict", "paper", "only_paper")] == [
        40,
        30,
        36,
        6,
    ]
    assert [beam[name] for name in ("n", "strict", "paper", "only_paper")] == [
        80,
        30,
        36,
        6,
    ]
    assert (greedy["rate"], greedy["paper_rate"], beam["rate"]) == (
        30 / 40,
        36 / 40,
        30 / 80,
    )
    assert greedy["examples"] == "=186363 31 | =186363 32 | =186363 33"
    assert greedy["rate_high"] < greedy["paper_rate"]
    assert "greedy" in set(filled.shown["probe"])
    close = TABLES["grading"].fill(Inputs(reduce_records(graded("paper", last=31))))
    assert only(close.frame, probe="greedy")["only_paper"] == 1
    assert close.shown.empty


def test_one_grade_has_no_rows():
    """Runs of one grade have no rows."""
    assert not TABLES["grading"].rows(Inputs(reduce_records(records("m", SEEN))))


def test_page_shows_differences_without_intervals():
    """Two items are too few for an interval, and the rules still differ."""
    frame = records("m", numbered(english=[Seen(greedy=False), Seen(greedy=True)]))
    outcomes = reduce_records(frame.assign(grading="strict", contains_paper=True))
    filled = TABLES["grading"].fill(Inputs(outcomes))
    assert filled.shown["only_paper"].tolist() == [1]
    same = frame.assign(grading="strict", contains_paper=frame["contains"])
    assert TABLES["grading"].fill(Inputs(reduce_records(same))).shown.empty
