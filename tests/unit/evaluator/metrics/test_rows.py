"""Rows of a frame by what is in its columns: the fast ways, against a mask over the frame."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics.inputs import ALL, grouped, in_language, measured_in_both, rows_where


def frame(languages: str) -> pd.DataFrame:
    names = {"e": "english", "k": "korean", "t": "thai"}
    return pd.DataFrame({"language": [names[each] for each in languages], "item": range(len(languages))})


@pytest.mark.parametrize("languages", ["eekkt", "ekket", "k", ""])
@pytest.mark.parametrize("language", ["english", "korean", "thai", "telugu"])
def test_the_rows_of_a_language_adjacent_or_not(languages, language):
    rows = frame(languages).astype({"language": object})
    pd.testing.assert_frame_equal(in_language(rows, language), rows[rows["language"] == language])
    assert in_language(rows, ALL) is rows


def test_looking_up_rows_is_a_search_through_all():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({name: rng.choice(list("abc"), 60) for name in ("task", "checkpoint")}).assign(n=range(60))
    found = grouped(table[table["task"] != "c"], "task", "checkpoint")
    for task in "abcd":
        for checkpoint in "abcd":
            wanted = rows_where(table[table["task"] != "c"], {"task": task, "checkpoint": checkpoint})
            pd.testing.assert_frame_equal(found(task, checkpoint), wanted)
    assert grouped(table.iloc[:0], "task", "checkpoint")("a", "a").empty


def test_what_is_measured_in_both():
    status = {"greedy_status_dense": ["ok", "excluded", "truncated"], "greedy_status_pruned": ["ok", "ok", None]}
    rows = pd.DataFrame(status, dtype=object)
    assert measured_in_both(rows, "greedy").index.tolist() == [0]
    assert measured_in_both(rows.iloc[:1], "greedy").index.tolist() == [0]
