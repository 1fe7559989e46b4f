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


def test_each_sentence_of_security_is_listed() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.split("## What they cannot do")[1].split("\n## ")[0]
    items = re.split(r"\n\s*\n|\n- ", section)
    sentences = [
        sentence
        for item in items
        for sentence in re.split(r"(?<=[.*]) (?=[A-Z])", words(item))
        if sentence.strip()
    ]
    assert len(sentences) > 25
    said = [entry["says"] for entry in PROMISES["docs/security.md"]]
    missing = [each for each in sentences if not any(part in each for part in said)]
    assert missing == []
