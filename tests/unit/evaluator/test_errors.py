"""Errors as the one line that a user reads."""

import pytest

from evaluator.errors import one_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("first\n  second "), "first second"),
        ("a\tb\n", "a b"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError(" \n"), "ValueError"),
        (ValueError("x" * 300), "x" * 200),
        ("", ""),
    ],
)
def test_an_error_is_one_line_of_bounded_length(error, line):
    assert one_line(error) == line


def test_the_limit_can_be_given():
    assert one_line(ValueError("abc def"), limit=3) == "abc"
