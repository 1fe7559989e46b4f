"""Readers that XQuAD and TyDi QA GoldP share: SQuAD-format JSON files (`data[].paragraphs[].qas[]`), and the hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, field, of_kind, parse, text_field
from evaluator.core.records import Item

LanguageOf = Callable[[str, Path], str]  # (item id, file) -> language


def files(path: Path, pattern: str) -> list[Path]:
    """The file itself, or a directory's files that match `pattern`, sorted. Raises InputError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    found = sorted(path.glob(pattern))
    if not found:
        raise InputError(f"{path}: holds no file {pattern!r}")
    return found


def read_all(files: Sequence[Path], task: str, language_of: LanguageOf, *, shared_contexts: bool) -> list[Item]:
    """Every item of the files, in order; `shared_contexts`: questions on one paragraph are one cluster.

    Raises InputError, with file and place, for malformed data, for an id that a language has twice, and without items.
    """
    items: dict[tuple[str, str], Item] = {}
    for file in files:
        for item in _read(file, task, language_of, shared_contexts=shared_contexts):
            if items.setdefault((item.language, item.item_id), item) is not item:
                raise InputError(f"{file}: language {item.language!r}: field 'id' repeats {item.item_id!r}")
    if not items:
        raise InputError(f"{files[0].parent}: holds no items")
    return list(items.values())


def _read(file: Path, task: str, language_of: LanguageOf, *, shared_contexts: bool) -> Iterator[Item]:
    try:
        content = parse(file.read_bytes(), str(file))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error
    for article_number, article in enumerate(field(content, "data", list, str(file))):
        place = f"{file}: data[{article_number}]"
        title = field(article, "title", str, place) if "title" in of_kind(article, dict, place) else ""
        for paragraph_number, paragraph in enumerate(field(article, "paragraphs", list, place)):
            inner = f"{place}.paragraphs[{paragraph_number}]"
            context = field(paragraph, "context", str, inner)
            for number, question in enumerate(field(paragraph, "qas", list, inner)):
                at = f"{inner}.qas[{number}]"
                item_id = text_field(question, "id", at)
                cluster = f"{article_number}.{paragraph_number} {title}".rstrip()
                yield Item(
                    task=task,
                    language=language_of(item_id, file),
                    item_id=item_id,
                    context=context,
                    question=field(question, "question", str, at),
                    answers=_answers(question, at),
                    cluster=cluster if shared_contexts else item_id,
                )


def _answers(question: Any, place: str) -> tuple[str, ...]:
    """The references, each once: TyDi QA often has the same one twice."""
    answers = field(question, "answers", list, place)
    texts = (field(answer, "text", str, f"{place}.answers[{number}]") for number, answer in enumerate(answers))
    return tuple(dict.fromkeys(texts))


_SPLIT = "validation"


def hub_item(task: str, language: str, row: Mapping[str, Any], cluster: str) -> Item:
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


def hub_rows(task: str, dataset: str, config: str) -> Iterable[Mapping[str, Any]]:
    """The rows of a data set's validation split. Raises InputError, in one line, where it cannot be loaded."""
    import datasets  # seconds of imports, for those who ask the hub only

    # It logs every retry; the one error below is enough for users.
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
