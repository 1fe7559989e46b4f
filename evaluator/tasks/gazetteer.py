"""The bundled task: short invented passages in nine languages, with questions and
answers.

Every town, river and person is invented, so no model has seen the facts before.
`gazetteer.json` has three kinds of passages of each language, and no invented word is
in two of them: `items`, each with a question and its answer; `passages`, the text for
pruning methods; `text`, for perplexity. tests/support/gazetteer.py makes the file.

Example::

    items = gazetteer_items("swahili")            # 300 items, always the same
    texts = gazetteer_passages("swahili", count=128)"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from evaluator.core.records import Item
from evaluator.tasks.base import Task

LANGUAGES = (
    "arabic",
    "bengali",
    "english",
    "finnish",
    "indonesian",
    "korean",
    "russian",
    "swahili",
    "telugu",
)
NAME = "gazetteer"
BUNDLED_PASSAGES = 512  # of a language, for calibration
FILE = Path(__file__).with_name("gazetteer.json")


@cache
def _bundled() -> Mapping[str, Mapping[str, Any]]:
    bundled: dict[str, dict[str, Any]] = json.loads(FILE.read_bytes())
    return bundled


def gazetteer_items(language: str, count: int = 300) -> list[Item]:
    """The first `count` evaluated items of `language`, one of `LANGUAGES`: one
    question per passage."""
    items = []
    rows = _bundled()[language]["items"][:count]
    for number, (context, question, answer) in enumerate(rows):
        item_id = f"{language}-{number:04d}"
        item = Item(
            task=NAME,
            language=language,
            item_id=item_id,
            context=context,
            question=question,
            answers=(answer,),
            cluster=item_id,
        )
        items.append(item)
    return items


def gazetteer_passages(
    language: str, *, start: int = 0, count: int = 128
) -> Iterator[str]:
    """`count` calibration passages from number `start` on, from the first again after
    the last. They share no invented name with the items."""
    passages = _bundled()[language]["passages"]
    for index in range(start, start + count):
        yield passages[index % len(passages)]


def gazetteer_text(language: str) -> list[str]:
    """Passages that no calibration sees."""
    passages: list[str] = _bundled()[language]["text"]
    return passages


TASK = Task(
    name=NAME,
    help="bundled: invented facts in nine languages",
    read_items=lambda _: [
        item for language in LANGUAGES for item in gazetteer_items(language)
    ],
    open="The answer is a name in the passage.",
    sample=lambda: gazetteer_items("english", 1)[0],
)
