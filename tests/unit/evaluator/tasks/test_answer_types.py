"""The type of an answer, by rule."""

from __future__ import annotations

import pytest

from evaluator.tasks.answer_types import answer_type


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("1990", "date"), ("in the 1990s", "date"), ("12 March 1990", "date"), ("March 5", "date"),
        ("3/4/2020", "date"), ("2021년 5월", "date"), ("2021年", "date"), ("١٩٩٠", "date"),
        ("1,500 people", "number"), ("1500 soldiers", "number"), ("1.500.000", "number"), ("about 30", "number"),
        ("$5 million", "number"), ("٣٠", "number"), ("24-10", "number"),
        ("Apollo 11", "name"), ("University of Warsaw", "name"), ("Иван Грозный", "name"), ("B-52", "name"),
        ("the river Kalo", "other"), ("oxygen", "other"), ("칼로 강", "other"), ("three", "other"),
    ],
)  # fmt: skip
def test_the_type_of_an_answer_is_a_rule(answer, kind):
    assert answer_type(answer) == kind
