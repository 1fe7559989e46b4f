"""Reader of SQuAD-like data sets on the Hugging Face hub, through `datasets`, which XQuAD and TyDi QA share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from evaluator.core.errors import InputError
from evaluator.core.records import Item

_SPLIT = "validation"


def item(task: str, language: str, row: Mapping[str, Any], cluster: str) -> Item:
    """The item of one row of a data set."""
    return Item(
        task=task,
        language=language,
        item_id=row["id"],
        context=row["context"],
        question=row["question"],
        answers=tuple(dict.fromkeys(row["answers"]["text"])),
        cluster=cluster,
    )


def rows(task: str, dataset: str, config: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a data set's validation split. Raises InputError, in one line, where it cannot be loaded."""
    import datasets  # seconds of imports, for those who ask the hub only

    # It logs every retry; what users need to know of them is in the one error below.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        found: Iterable[Mapping[str, Any]] = datasets.load_dataset(dataset, config, split=_SPLIT)
    # Offline, a missing data set, a proxy and a broken cache each raise another library's exceptions.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(
            f"task {task!r}: cannot load data set {dataset!r} (config {config!r}, split {_SPLIT!r}): {reason}; "
            f"with its files on disk, use {task}:DIR"
        ) from error
    return found
