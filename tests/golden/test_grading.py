"""Both grades of an answer: what the strict rule counts (grading.csv, with a reason for
each row), which grade tables follow, and what table `grading` counts, by hand."""

import csv
from pathlib import Path

import pandas as pd
import pytest

from evaluator.core.grading import contains
from tests.support.records import Seen, numbered, records
from tests.support.tables import assert_has, only, tables

# Of 40 items in English, greedy is right on 30 to the strict rule, and on 36 to the
# paper's; of 2 beams each one.
SEEN = [Seen(greedy=number < 30, beams=(number < 30, False)) for number in range(40)]


def test_strict_rule_follows_the_golden_file():
    with Path(__file__).with_name("grading.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wrong = []
    for row in rows:
        is_right = contains(row["response"], (row["answer"],), row["language"])
        if is_right != (row["right"] == "yes"):
            wrong.append(row)
    assert wrong == []
    assert len(rows) >= 400
    assert len({row["language"] for row in rows}) >= 25


def graded(rule: str | None, last: int = 36) -> pd.DataFrame:
    """Records with both grades: items 31 to `last` have answers that only the
    paper's rule counts."""
    frame = records("m", numbered(english=SEEN))
    number = frame["item_id"].astype(int)
    loose = number.between(31, last) & (frame["index"] == 0)
    frame.loc[loose, "text"] = "=186363\n" + number[loose].astype(str)
    paper = frame["contains"].astype(bool) | loose
    return frame.assign(grading=rule, contains_paper=paper)


@pytest.mark.parametrize(("rule", "right"), [("strict", 30), ("paper", 36), (None, 30)])
def test_accuracy_follows_the_runs_rule(rule, right):
    accuracy = tables(graded(rule))["accuracy"]
    assert_has(only(accuracy, probe="greedy"), accuracy=right / 40)


def test_table_counts_what_only_paper_counts():
    filled = tables(graded("paper")).fill("grading")
    greedy, beam = (only(filled.frame, probe=probe) for probe in ("greedy", "beam"))
    assert_has(
        greedy, n=40, strict=30, paper=36, only_paper=6, rate=0.75, paper_rate=0.9
    )
    assert_has(greedy, examples="=186363 31 | =186363 32 | =186363 33")
    assert_has(beam, n=80, strict=30, paper=36, only_paper=6, rate=30 / 80)
    assert greedy["rate_high"] < greedy["paper_rate"]
    assert "greedy" in set(filled.shown["probe"])
    close = tables(graded("paper", last=31)).fill("grading")
    assert_has(only(close.frame, probe="greedy"), only_paper=1)
    assert close.shown.empty


def test_one_grade_has_no_rows():
    assert tables(records("m", numbered(english=SEEN)))["grading"].empty
