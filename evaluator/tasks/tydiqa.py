"""TyDi QA GoldP: questions written in nine languages, which it names in full, each with its gold passage."""

from __future__ import annotations

import re
from pathlib import Path

from evaluator.core.errors import InputError
from evaluator.core.records import Item
from evaluator.core.text import name_of
from evaluator.tasks import squad
from evaluator.tasks.base import Argument, Task

_DATASET = "google-research-datasets/tydiqa"
# Language -> items of the validation split, as the hub has them.
_SIZES = {
    "arabic": 921,
    "bengali": 113,
    "english": 440,
    "finnish": 782,
    "indonesian": 565,
    "korean": 276,
    "russian": 812,
    "swahili": 499,
    "telugu": 669,
}
_LANGUAGES = (*_SIZES, "japanese", "thai")  # of TyDi QA; GoldP has the first nine


def read_tydiqa(path: Path) -> list[Item]:
    """Every item of the `*.json` files of a directory, or of one file.

    The language is the prefix of an item's id (`swahili-123`), or else it is taken from the file's name
    (`tydiqa-goldp-dev-swahili.json`, `tydiqa.sw.json`). Every question is its own cluster. Raises InputError.
    """
    return squad.read_all(squad.files(path, "*.json"), "tydiqa", _language_of, shared_contexts=False)


def load_tydiqa() -> list[Item]:
    """The items of the gold-passage task on the hub; the language is the id's prefix. Raises InputError."""
    return [
        squad.hub_item("tydiqa", row["id"].partition("-")[0], row, row["id"])
        for row in squad.hub_rows("tydiqa", _DATASET, "secondary_task")
    ]


def _language_of(item_id: str, file: Path) -> str:
    prefix = item_id.partition("-")[0]
    if prefix in _LANGUAGES:
        return prefix
    named = {name_of(piece) for piece in re.split(r"[-_.]", file.stem.lower())}.intersection(_LANGUAGES)
    if len(named) != 1:
        raise InputError(
            f"{file}: id {item_id!r} has no language prefix, and the file's name does not name one language "
            f"(known: {', '.join(sorted(_LANGUAGES))})"
        )
    return named.pop()


def sample() -> Item:
    """An item of our own in this task's way."""
    return Item(
        task="tydiqa",
        language="finnish",
        item_id="finnish-sample",
        context="Silta valmistui vuonna 1958, ja se on 212 metriä pitkä.",
        question="Kuinka pitkä silta on?",
        answers=("212 metriä",),
        cluster="finnish-sample",
    )


TASK = Task(
    name="tydiqa",
    help="TyDi QA GoldP, from the hub or from its files on disk",
    argument=Argument("DIR"),
    read_items=lambda path: load_tydiqa() if path is None else read_tydiqa(path),
    sizes=_SIZES,
    open="The answer is a span of the passage; questions were asked by people who had not read it.",
    sample=sample,
)
