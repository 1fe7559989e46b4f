"""A deletion is not a hole: each promise of the pages in tests/promises.yaml names a
test that exists."""

import ast
import re
from collections.abc import Mapping
from functools import cache

import pytest
import yaml

from tests.support.documents import ROOT

PROMISES: Mapping[str, list[Mapping[str, str]]] = yaml.safe_load(
    (ROOT / "tests" / "promises.yaml").read_text(encoding="utf-8")
)


def words(text: str) -> str:
    return " ".join(text.split())


@cache
def names(path: str) -> set[str]:
    """The functions of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PROMISES)
def test_each_promise_has_a_test(page: str) -> None:
    text = words((ROOT / page).read_text(encoding="utf-8"))
    for entry in PROMISES[page]:
        path, _, name = entry["test"].partition("::")
        assert name in names(path), entry
        assert entry["says"] in text, entry


@pytest.mark.parametrize(
    ("page", "title", "least"),
    [
        ("docs/security.md", "## What they cannot do", 25),
        ("SECURITY.md", "## What counts", 2),
    ],
)
def test_each_sentence_of_security_is_listed(page: str, title: str, least: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    section = text.split(title)[1].split("\n## ")[0]
    items = re.split(r"\n\s*\n|\n- ", section)
    sentences = [
        sentence
        for item in items
        for sentence in re.split(r"(?<=[.*]) (?=[A-Z])", words(item))
        if sentence.strip()
    ]
    assert len(sentences) > least
    said = [entry["says"] for entry in PROMISES[page]]
    missing = [each for each in sentences if not any(part in each for part in said)]
    assert missing == []
