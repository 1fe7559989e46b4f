"""XQuAD: 1190 parallel questions in twelve languages, which it names by their codes."""

from __future__ import annotations

from pathlib import Path

from evaluator.core.records import Item
from evaluator.tasks import squad
from evaluator.tasks.base import Argument, Task

_DATASET = "google/xquad"
_LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ru", "th", "tr", "vi", "zh", "ro")


def read_xquad(path: Path) -> list[Item]:
    """Every item of the files `xquad.<language>.json` of a directory, or of one such file.

    Questions on one paragraph share a cluster, named by the article and the paragraph, which are the same ones in every
    language of XQuAD. Raises InputError.
    """
    files = squad.files(path, "xquad.*.json")
    return squad.read_all(files, "xquad", lambda _, file: file.stem.rpartition(".")[2], shared_contexts=True)


def load_xquad() -> list[Item]:
    """Items of all twelve configurations on the hub; questions on one context share a cluster. Raises InputError."""
    items = []
    for language in _LANGUAGES:
        # Numbered in order of appearance, which is the same in every language.
        contexts: dict[str, str] = {}
        for row in squad.hub_rows("xquad", _DATASET, f"xquad.{language}"):
            cluster = contexts.setdefault(row["context"], f"context {len(contexts)}")
            items.append(squad.hub_item("xquad", language, row, cluster))
    return items


def sample() -> Item:
    """An item of our own in this task's way."""
    return Item(
        task="xquad",
        language="en",
        item_id="sample",
        context="The lighthouse of Arda is 41 metres high and was lit by oil until 1931.",
        question="How high is the lighthouse?",
        answers=("41 metres",),
        cluster="sample",
    )


TASK = Task(
    name="xquad",
    help="XQuAD, from the hub or from its files on disk",
    argument=Argument("DIR"),
    read_items=lambda path: load_xquad() if path is None else read_xquad(path),
    sizes=dict.fromkeys(sorted(_LANGUAGES), 1190),
    open="The answer is a span of the passage.",
    sample=sample,
)
