"""Rows of a frame by what is in its columns: the fast ways, against a mask over the frame."""

import pandas as pd
import pytest

from evaluator.metrics.inputs import ALL, Comparison, in_language


def frame(languages: str) -> pd.DataFrame:
    names = {"e": "english", "k": "korean", "t": "thai"}
    return pd.DataFrame({"language": [names[each] for each in languages], "item": range(len(languages))})


@pytest.mark.parametrize("languages", ["eekkt", "ekket", "k", ""])
@pytest.mark.parametrize("language", ["english", "korean", "thai", "telugu"])
def test_the_rows_of_a_language_adjacent_or_not(languages, language):
    rows = frame(languages).astype({"language": object})
    pd.testing.assert_frame_equal(in_language(rows, language), rows[rows["language"] == language])
    assert in_language(rows, ALL) is rows


def test_what_is_measured_in_both():
    status = {"greedy_status_dense": ["ok", "excluded", "truncated"], "greedy_status_pruned": ["ok", "ok", None]}
    rows = pd.DataFrame(status, dtype=object)
    for some in (rows, rows.iloc[:1]):
        found = Comparison(subject=None, unpaired={}, languages=[], reason=None, load=lambda some=some: some)
        assert found.measured("greedy").index.tolist() == [0]
