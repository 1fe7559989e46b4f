"""The fixed control pairs, and what judges make of them in words."""

import pandas as pd
import pytest

from evaluator.core.grading import grade
from evaluator.judging.controls import controls, told


def test_controls_are_claims_of_both_kinds():
    found = controls()
    assert list(found.values()).count(True) == 2 * list(found.values()).count(False)
    assert len(found) == 60
    for claim, matches in found.items():
        strict = grade(claim.response, claim.answers, "english")
        if claim.response in claim.answers:
            assert matches
        if not matches:
            assert not strict["contains"], claim


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (lambda right: right, "accepts 40 of 40 right and 0 of 20 wrong answers"),
        (lambda right: True, "and 20 of 20 wrong answers: do not trust its verdicts"),
        (
            lambda right: False,
            "accepts 0 of 40 right and 0 of 20 wrong answers: do not",
        ),
        (lambda right: None, "accepts 0 of 0 right and 0 of 0 wrong answers"),
    ],
)
def test_control_pairs_in_words(judge, words):
    """A judge that always says yes or no is named; one without verdicts is not."""
    rows = [
        {"item_id": f"{number:02d}", "verdict": judge(right)}
        for number, right in enumerate(controls().values())
    ]
    assert words in told(pd.DataFrame(rows))
