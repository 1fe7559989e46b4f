"""Numbers as people read them."""

from __future__ import annotations

import pandas as pd
import pytest

from evaluator.report.cells import grid, reference_grid, shown, titles


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.5, "50.0 %"),
        ("drop", -0.015, "−1.5 %"),
        ("n", 1234, "1,234"),
        ("kept", 3, "3"),
        ("delta_pr", -0.1, "−0.100"),
        ("rank_median", 3.5, "3.5"),
        ("margin_median", -1.25, "−1.25"),
        ("mcnemar_p", 0.0312, "0.031"),
        ("mcnemar_p", 0.00002, "2e-05"),
        ("sparsity", 0.5, "0.5"),
        ("noise_floor", True, "yes"),
        ("language", "korean", "korean"),
        ("accuracy", None, "–"),
        ("accuracy", float("nan"), "–"),
        ("n", pd.NA, "–"),
    ],
)
def test_a_value_is_shown_by_what_its_column_means(name, value, text):
    assert shown(name, value) == text


def test_an_interval_joins_its_value_and_empty_columns_go():
    frame = pd.DataFrame(
        {
            "task": ["t", "t"],
            "language": ["korean", "all"],
            "rate": [0.25, None],
            "rate_low": [0.1, None],
            "rate_high": [0.4, None],
            "reason": [None, None],
        }
    )
    made = grid(frame)
    assert made.columns == ("language", "rate")
    assert [(cell.text, cell.interval) for cell in made.by_language[0]] == [("korean", ""), ("25.0 %", "10.0 to 40.0")]
    assert [cell.text for cell in made.pooled[0]] == ["all", "–"]


def test_the_headlines_fates_are_shares():
    assert shown("kept", 0.25, counts_as_rates=True) == "25.0 %"


def test_the_papers_number_and_ours_are_shown_as_their_quantity_is():
    row = {"table": "rank", "task": "tydiqa", "checkpoint": "p", "language": "all", "cell": "", "source": "arXiv, 3.3"}
    row |= {"quantity": "rank_median", "paper": 3.5, "ours": 4.0, "ours_low": 3.0, "ours_high": 5.0, "n": 560}
    made = reference_grid(pd.DataFrame([row]))
    assert made.columns == ("checkpoint", "language", "quantity", "paper", "ours", "n", "source")
    assert [(cell.text, cell.interval) for cell in made.pooled[0][3:6]] == [
        ("3.5", ""),
        ("4.0", "3.0 to 5.0"),
        ("560", ""),
    ]


def test_a_heading_is_its_column_in_words():
    assert titles(["delta_pr", "open_accuracy", "mc_only_corrected"]) == [
        "Δ PR",
        "open accuracy",
        "mc_only, chance-corrected",
    ]
