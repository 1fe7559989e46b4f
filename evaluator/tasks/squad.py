"""XQuAD and TyDi QA GoldP, from SQuAD-format JSON files
(`data[].paragraphs[].qas[]`) or from the hub.

XQuAD: 1190 parallel questions in twelve languages, which it names by their codes.
TyDi QA GoldP: questions written in nine languages, which it names in full, each with
its gold passage."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from evaluator.core.errors import (
    Document,
    InputError,
    field,
    need_regular,
    of_kind,
    parse,
    read_bytes,
    text_field,
)
from evaluator.core.records import Item
from evaluator.core.saved_data import is_saved, saved_rows
from evaluator.core.text import name_of
from evaluator.tasks.base import Argument, Items, Task
from evaluator.tasks.rows import RowLocation, left_out, rows_at

LanguageOf = Callable[[str, Path], str]  # (item id, file) -> language
_SPLIT = "validation"
_XQUAD_LANGUAGES = (
    "ar",
    "de",
    "el",
    "en",
    "es",
    "hi",
    "ru",
    "th",
    "tr",
    "vi",
    "zh",
    "ro",
)
# Language -> items of the validation split, as the hub has them.
_TYDIQA_SIZES = {
    "arabic": 921, "bengali": 113, "english": 440, "finnish": 782, "indonesian": 565, "korean": 276, "russian": 812,
    "swahili": 499, "telugu": 669,
}  # fmt: skip
_TYDIQA_LANGUAGES = (*_TYDIQA_SIZES, "japanese", "thai")  # GoldP has the first nine


def read_xquad(path: Path | None) -> list[Item]:
    """Every item of the files `xquad.<language>.json` of a directory, or of one such
    file; None: of the hub.

    Questions on one paragraph share a cluster, named by the article and the
    paragraph, which are the same ones in every language of XQuAD. Raises InputError."""
    if path is not None:
        return _read_all(
            path, "xquad.*.json", "xquad", _xquad_language, shared_contexts=True
        )
    items: list[Item] = []
    for language in _XQUAD_LANGUAGES:
        hub = _on_the_hub("xquad", "google/xquad", f"xquad.{language}")
        with rows_at(hub) as (_, rows):
            items += _in_contexts(language, rows)
    return items


def _on_the_hub(task: str, data: str, config: str) -> RowLocation:
    return RowLocation(task=task, data=data, local=False, config=config, split=_SPLIT)


def _in_contexts(language: str, rows: Iterable[Document]) -> Iterator[Item]:
    """XQuAD's items. Contexts are numbered in order of appearance, which is the same
    in every language."""
    contexts: dict[str, str] = {}
    for row in rows:
        yield _hub_item(
            "xquad",
            language,
            row,
            contexts.setdefault(row["context"], f"context {len(contexts)}"),
        )


def _xquad_language(_: str, file: Path) -> str:
    return file.name.removesuffix(".json").rpartition(".")[2]


_TYDIQA = "google-research-datasets/tydiqa"


def read_tydiqa(path: Path | None) -> list[Item]:
    """Every item of the `*.json` files of a directory, or of one file; None: of the
    hub's gold-passage task.

    The language is the prefix of an item's id (`swahili-123`), or else it is taken from
    the file's name (`tydiqa-goldp-dev-swahili.json`, `tydiqa.sw.json`). Every question
    is its own cluster. Raises InputError.
    """
    if path is not None:
        return _read_all(
            path, "*.json", "tydiqa", _tydiqa_language, shared_contexts=False
        )
    items = []
    with rows_at(_on_the_hub("tydiqa", _TYDIQA, "secondary_task")) as (_, rows):
        for row in rows:
            item_id = row["id"]
            language = item_id.partition("-")[0]
            items.append(_hub_item("tydiqa", language, row, item_id))
    return items


def _tydiqa_language(item_id: str, file: Path) -> str:
    prefix = item_id.partition("-")[0]
    if prefix in _TYDIQA_LANGUAGES:
        return prefix
    named = {
        name_of(piece) for piece in re.split(r"[-_.]", file.stem.lower())
    }.intersection(_TYDIQA_LANGUAGES)
    if len(named) != 1:
        raise InputError(
            f"{file}: id {item_id!r} has no language prefix, and the file's name does"
            f" not name one language (known: {', '.join(sorted(_TYDIQA_LANGUAGES))})"
        )
    return named.pop()


def _files(path: Path, pattern: str) -> list[Path]:
    """The file itself, or a directory's files that match `pattern` and folders of
    `save_to_disk`, sorted. Raises InputError if there are none."""
    if path.is_file() or is_saved(path):
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    found = sorted(
        [*path.glob(pattern), *(each for each in path.iterdir() if is_saved(each))]
    )
    if not found:
        raise InputError(
            f"{path}: holds no file {pattern!r} and no folder of save_to_disk"
        )
    return found


def _read_all(
    path: Path,
    pattern: str,
    task: str,
    language_of: LanguageOf,
    *,
    shared_contexts: bool,
) -> Items:
    """Every item, in order. Raises InputError with file and place if malformed."""
    items, files = Items(), _files(path, pattern)
    for file in files:
        items += _read(file, task, language_of, shared_contexts=shared_contexts)
    items.left_out = left_out(path, files)
    return items


def _read(
    file: Path, task: str, language_of: LanguageOf, *, shared_contexts: bool
) -> Iterator[Item]:
    if is_saved(file):
        columns = ("id", "context", "question", "answers")
        rows = saved_rows(file, _SPLIT, columns=columns)
        if shared_contexts:
            yield from _in_contexts(language_of("", file), rows)
        else:
            for row in rows:
                yield _hub_item(task, language_of(row["id"], file), row, row["id"])
        return
    content = parse(read_bytes(need_regular(file)), str(file))
    for article_number, article in enumerate(field(content, "data", list, str(file))):
        place = f"{file}: data[{article_number}]"
        title = ""
        if "title" in of_kind(article, dict, place):
            title = field(article, "title", str, place)
        paragraphs = field(article, "paragraphs", list, place)
        for paragraph_number, paragraph in enumerate(paragraphs):
            inner = f"{place}.paragraphs[{paragraph_number}]"
            context = field(paragraph, "context", str, inner)
            for number, question in enumerate(field(paragraph, "qas", list, inner)):
                at = f"{inner}.qas[{number}]"
                item_id = text_field(question, "id", at)
                answers = [
                    field(answer, "text", str, f"{at}.answers[{entry}]")
                    for entry, answer in enumerate(field(question, "answers", list, at))
                ]
                yield Item(
                    task=task,
                    language=language_of(item_id, file),
                    item_id=item_id,
                    context=context,
                    question=field(question, "question", str, at),
                    # TyDi QA often has the same one twice
                    answers=tuple(dict.fromkeys(answers)),
                    cluster=(
                        f"{article_number}.{paragraph_number} {title}".rstrip()
                        if shared_contexts
                        else item_id
                    ),
                )


def _hub_item(task: str, language: str, row: Document, cluster: str) -> Item:
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


XQUAD = Task(
    name="xquad",
    help="XQuAD, from the hub or from its files on disk",
    example="on the hub: google/xquad, config xquad.LANGUAGE, split validation",
    argument=Argument("DIR"),
    read_items=read_xquad,
    sizes=dict.fromkeys(sorted(_XQUAD_LANGUAGES), 1190),
    translations=True,
    open="The answer is a span of the passage.",
    sample=lambda: Item(
        task="xquad", language="en", item_id="sample", question="How high is the lighthouse?", answers=("41 metres",),
        context="The lighthouse of Arda is 41 metres high and was lit by oil until 1931.", cluster="sample",
    ),
)  # fmt: skip
TYDIQA = Task(
    name="tydiqa",
    help="TyDi QA GoldP, from the hub or from its files on disk",
    example=f"on the hub: {_TYDIQA}, config secondary_task, split validation",
    argument=Argument("DIR"),
    read_items=read_tydiqa,
    sizes=_TYDIQA_SIZES,
    open="The answer is a span of the passage; questions were asked by people who had not read it.",
    sample=lambda: Item(
        task="tydiqa", language="finnish", item_id="finnish-sample", question="Kuinka pitkä silta on?",
        context="Silta valmistui vuonna 1958, ja se on 212 metriä pitkä.", answers=("212 metriä",),
        cluster="finnish-sample",
    ),
)  # fmt: skip
