"""The paper's figures from a run: its values beside ours, and whose they are."""

from functools import cache

import pandas as pd
import pytest

from evaluator.metrics import Inputs, reduce_records
from evaluator.metrics.published import paper
from evaluator.report.paper_page import (
    Pair,
    main_pair,
    places,
    render_paper_page,
    values_of,
)
from evaluator.report.results import compute
from tests.support.records import Seen, records

KNOWN = Seen(greedy=True, choice=True, rank=1, margin=0.0, beams=[True], samples=[True])
SILENT = Seen(
    greedy=False, choice=True, rank=4, margin=-1.0, beams=[True], samples=[False]
)
QWEN = {
    "config": {
        "models": {"dense": "Qwen/Qwen3-8B"},
        "tasks": [{"task": "tydiqa", "languages": None, "items": 200, "chat": False}],
    }
}


@cache
def results(*, same=False):
    """A dense checkpoint and a pruned one that lost one Swahili answer of four."""
    dense = {}
    for language in ("english", "swahili"):
        for number in range(4):
            dense[f"{language}/{number}"] = KNOWN
    pruned = {**dense, "swahili/1": SILENT}
    setting = {"base": "dense", "task": "tydiqa", "calibration": "c4"}
    parts = [
        records("dense", dense, task="tydiqa"),
        records("wanda-0.5", pruned, **setting),
    ]
    return compute(Inputs(reduce_records(pd.concat(parts)), run=QWEN if same else None))


def rows_of(found):
    return {name: filled.rows for name, filled in found.tables.items()}


def test_every_printed_value_stands_on_the_page():
    """But for choice accuracy, which stands beside that with hard distractors."""
    tables = rows_of(results())
    pair = main_pair(tables, {})
    shown = []
    for place in places():
        for value in values_of(place, tables, pair):
            if value.published is not None:
                quantity = value.quantity
                shown.append((quantity.table, quantity.column, value.published))
    printed = set()
    for entry in paper()["values"]:
        if entry["where"].get("probe") != "choice":
            printed.add((entry["table"], entry["column"], float(entry["value"])))
    assert set(shown) == printed


def test_values_and_differences():
    found = results()
    page = render_paper_page("run", found, {})
    (figure,) = [place for place in places() if place.name == "Figure 1"]
    values = {}
    for value in values_of(
        figure, rows_of(found), Pair("tydiqa", "dense", "wanda-0.5")
    ):
        values[value.label] = value.published, value.ours
    assert values["swahili"] == (0.39, 0.25)
    assert values["english"] == (0.12, 0.0)
    assert values["bengali"] == (0.5, None)
    assert "\N{MINUS SIGN}14.0 pp" in page


def test_code_of_a_language_meets_the_papers_name():
    tables = rows_of(results())
    for rows in tables.values():
        rows[:] = [
            {**row, "language": "en"} if row.get("language") == "english" else row
            for row in rows
        ]
    (figure,) = [place for place in places() if place.name == "Figure 1"]
    found = values_of(figure, tables, Pair("tydiqa", "dense", "wanda-0.5"))
    shown = {value.label: (value.published, value.ours) for value in found}
    results.cache_clear()
    assert shown["en"] == (0.12, 0.0)
    assert "english" not in shown


@pytest.mark.parametrize("same", [True, False])
def test_another_models_values_are_marked(same):
    page = render_paper_page("run", results(same=same), QWEN if same else {})
    assert ("The setting is the paper's." in page) == same
    assert ("those of another model or setting" in page) == (not same)
