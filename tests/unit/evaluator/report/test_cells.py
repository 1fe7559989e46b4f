"""Numbers as people read them."""

import pandas as pd
import pytest
import yaml

from evaluator.metrics import TABLES
from evaluator.metrics.columns import LANGUAGE, PERCENTAGE, REASON, TEXT, Column
from evaluator.metrics.headline import WITH_INTERVALS
from evaluator.report.page import grid, published_grid

# table, column, value, what the page shows
VALUES = """
- [accuracy, accuracy, 0.5, "50.0 %"]
- [accuracy, drop, -0.015, "−1.5 pp"]
- [accuracy, n, 1234, "1,234"]
- [pr_gap, delta_pr, -0.1, "−0.100"]
- [rank, rank_median, 3.5, "3.5"]
- [rank, rank_median, .inf, inf]
- [rank, margin_median, -1.25, "−1.25"]
- [perplexity, perplexity, 4123.456, "4,123.46"]
- [accuracy, mcnemar_p, 0.0312, "0.031"]
- [accuracy, mcnemar_p, 2.0e-5, "2e-05"]
- [fates, re_run, true, "yes"]
- [fates, language, korean, korean]
- [accuracy, accuracy, .nan, "–"]
- [accuracy, n, null, "–"]
"""


@pytest.mark.parametrize(("table", "name", "value", "text"), yaml.safe_load(VALUES))
def test_values_follow_their_kind(table, name, value, text):
    assert TABLES[table].column(name).shown({name: value}) == text


SHORT = (
    *TEXT("task", "base"),
    LANGUAGE,
    Column("rate", PERCENTAGE, interval=True),
    REASON,
)


def test_intervals_and_published_numbers():
    common = {"task": "t", "base": "dense", "reason": None}
    korean = common | {"language": "korean", "rate": 0.25}
    korean |= {"rate_low": 0.1, "rate_high": 0.4}
    frame = pd.DataFrame([korean, common | {"language": "all"}])
    made = grid(frame, SHORT)
    assert made.headings == ("language", "rate", "base")
    language, rate, _ = made.by_language[0]
    assert (language.text, language.interval) == ("korean", "")
    assert (rate.text, rate.interval) == ("25.0 %", "10.0 to 40.0")
    assert [cell.text for cell in made.pooled[0]] == ["all", "–", "dense"]
    row = {"table": "rank", "task": "tydiqa", "checkpoint": "p", "language": "all"}
    row |= {"cell": "", "source": "arXiv, 3.3", "quantity": "rank_median", "n": 560}
    row |= {"paper": 3.5, "ours": 4.0, "ours_low": 3.0, "ours_high": 5.0}
    made = published_grid(pd.DataFrame([row]))
    found = [(cell.text, cell.interval) for cell in made.pooled[0][3:6]]
    assert found == [("3.5", ""), ("4.0", "3.0 to 5.0"), ("560", "")]


@pytest.mark.parametrize(
    ("known", "page", "terminal"),
    [(20, "25.0 %", "25.0"), (12, "3 of 12", "3/12"), (0, "–", "–"), (pd.NA, "–", "–")],
)
def test_headline_counts_few_answers(known, page, terminal):
    kept = {column.name: column for column in WITH_INTERVALS}["kept"]
    row = {"known": known, "kept": 0.25 if page != "–" else None}
    assert (kept.shown(row), kept.shown(row, narrow=True)) == (page, terminal)
    interval = kept.interval_of(row | {"kept_low": 0.1, "kept_high": 0.4})
    assert interval == ("" if known is not pd.NA and known < 20 else "10.0 to 40.0")
