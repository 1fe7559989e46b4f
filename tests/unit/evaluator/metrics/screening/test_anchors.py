"""Every item has the same chance to be an anchor, and every language and kind of behaviour its share."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluator.metrics.screening.anchors import draw_anchors, pivotal


def base(items: dict[str, int]) -> pd.DataFrame:
    """Outcomes of a base that is right on every other item, and ever less sure."""
    rows = [
        {"language": language, "item_id": f"{number:03d}", "produced": float(number % 2), "recognised": 1.0}
        | {"choice_margin": float(-number), "answer_logprob": np.nan}
        for language, count in items.items()
        for number in range(count)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("total", "count"), [(10, 3), (12, 4), (7, 6), (5, 1)])
def test_each_place_has_the_same_chance(total, count):
    rng = np.random.default_rng(1)
    drawn = [pivotal(total, count, rng) for _ in range(6000)]
    assert all(len(set(places.tolist())) == count for places in drawn)
    shares = np.bincount(np.concatenate(drawn), minlength=total) / len(drawn)
    assert shares == pytest.approx(np.full(total, count / total), abs=0.03)  # more than 4 standard errors


def test_places_are_spread_evenly():
    rng = np.random.default_rng(2)
    for _ in range(300):
        places = pivotal(400, 40, rng)
        assert abs(int((places < 100).sum()) - 10) <= 1
        assert np.diff(places).max() < 40


@pytest.mark.parametrize(("total", "count"), [(5, 5), (5, 0), (5, 6)])
def test_what_is_no_part_is_refused(total, count):
    with pytest.raises(ValueError, match=f"{count} of {total}"):
        pivotal(total, count, np.random.default_rng(0))


def test_languages_and_behaviours_have_their_shares():
    outcomes = base({"english": 120, "swahili": 60})
    for seed in range(20):
        drawn = outcomes.iloc[draw_anchors(outcomes, 30, seed, "t")]
        assert abs((drawn["language"] == "english").sum() - 20) <= 1
        assert abs(drawn["produced"].sum() - 15) <= 2


def test_they_depend_on_seed_and_task_and_not_on_the_order_of_the_rows():
    outcomes = base({"english": 50, "swahili": 50})
    drawn = outcomes.iloc[draw_anchors(outcomes, 20, 0, "t")]
    other = outcomes.iloc[::-1].reset_index(drop=True)
    again = other.iloc[draw_anchors(other, 20, 0, "t")]
    key = ["language", "item_id"]
    assert drawn[key].values.tolist() == again[key].sort_values(key).values.tolist()
    assert draw_anchors(outcomes, 20, 1, "t").tolist() != draw_anchors(outcomes, 20, 0, "t").tolist()
    assert draw_anchors(outcomes, 20, 0, "u").tolist() != draw_anchors(outcomes, 20, 0, "t").tolist()


def test_where_there_are_no_more_items_all_are_anchors():
    assert draw_anchors(base({"english": 5}), 9, 0, "t").tolist() == [0, 1, 2, 3, 4]
