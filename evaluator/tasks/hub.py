"""XQuAD and TyDi QA GoldP from the Hugging Face hub, through `datasets`: the default where no path is given."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.errors import InputError
from evaluator.records import Item

_XQUAD = "google/xquad"
_XQUAD_LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ru", "th", "tr", "vi", "zh", "ro")
_TYDIQA = "google-research-datasets/tydiqa"
_SPLIT = "validation"


def load_xquad() -> list[Item]:
    """The items of all twelve configurations; questions on one context share a cluster. Raises InputError."""
    items = []
    for language in _XQUAD_LANGUAGES:
        # Numbered in order of appearance, which is the same in every language.
        contexts: dict[str, str] = {}
        for row in _rows("xquad", _XQUAD, f"xquad.{language}"):
            cluster = contexts.setdefault(row["context"], f"context {len(contexts)}")
            items.append(_item("xquad", language, row, cluster))
    return items


def load_tydiqa() -> list[Item]:
    """The items of the gold-passage task; the language is the id's prefix. Raises InputError."""
    return [
        _item("tydiqa", row["id"].partition("-")[0], row, row["id"])
        for row in _rows("tydiqa", _TYDIQA, "secondary_task")
    ]


def _item(task: str, language: str, row: Mapping[str, Any], cluster: str) -> Item:
    return Item(
        task=task,
        language=language,
        item_id=row["id"],
        context=row["context"],
        question=row["question"],
        answers=tuple(dict.fromkeys(row["answers"]["text"])),
        cluster=cluster,
    )


def _rows(task: str, dataset: str, config: str) -> Iterable[Mapping[str, Any]]:
    import datasets

    # Its retries are logged one line each; what a user needs of them is in the one error below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(dataset, config, split=_SPLIT)
    # Offline, a missing data set, a proxy and a broken cache each raise another library's exceptions.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"task {task!r}: cannot load data set {dataset!r} (config {config!r}, split {_SPLIT!r}): {reason}; "
            f"with its files on disk, use {task}:DIR"
        ) from error
    return rows
