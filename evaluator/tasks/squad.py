"""XQuAD and TyDi QA GoldP from SQuAD-format JSON files on disk: `data[].paragraphs[].qas[]`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.fields import field, of_kind, parse, text_field
from evaluator.records import Item

# The languages of TyDi QA (GoldP has the first nine) and the codes under which file names may have them.
_TYDIQA_LANGUAGES = {
    "arabic": "ar",
    "bengali": "bn",
    "english": "en",
    "finnish": "fi",
    "indonesian": "id",
    "korean": "ko",
    "russian": "ru",
    "swahili": "sw",
    "telugu": "te",
    "japanese": "ja",
    "thai": "th",
}
_TYDIQA_NAMES = {code: name for name, code in _TYDIQA_LANGUAGES.items()} | {name: name for name in _TYDIQA_LANGUAGES}

_LanguageOf = Callable[[str, Path], str]  # (item id, file) -> language


def read_xquad(path: Path) -> list[Item]:
    """Every item of the files `xquad.<language>.json` of a directory, or of one such file.

    Questions on one paragraph share a cluster, named by the article and the paragraph, which are the same ones in every
    language of XQuAD. Raises InputError.
    """
    return _read_all(_files(path, "xquad.*.json"), "xquad", _xquad_language, shared_contexts=True)


def read_tydiqa(path: Path) -> list[Item]:
    """Every item of the `*.json` files of a directory, or of one file.

    The language is the prefix of an item's id (`swahili-123`), or else it is taken from the file's name
    (`tydiqa-goldp-dev-swahili.json`, `tydiqa.sw.json`). Every question is a cluster of its own. Raises InputError.
    """
    return _read_all(_files(path, "*.json"), "tydiqa", _tydiqa_language, shared_contexts=False)


def _files(path: Path, pattern: str) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or directory")
    files = sorted(path.glob(pattern))
    if not files:
        raise InputError(f"{path}: holds no file {pattern!r}")
    return files


def _xquad_language(_: str, file: Path) -> str:
    return file.stem.rpartition(".")[2]


def _tydiqa_language(item_id: str, file: Path) -> str:
    prefix = item_id.partition("-")[0]
    if prefix in _TYDIQA_LANGUAGES:
        return prefix
    named = [_TYDIQA_NAMES[piece] for piece in re.split(r"[-_.]", file.stem.lower()) if piece in _TYDIQA_NAMES]
    if len(set(named)) != 1:
        raise InputError(
            f"{file}: id {item_id!r} has no language prefix, and the file's name does not name one language "
            f"(known: {', '.join(sorted(_TYDIQA_LANGUAGES))})"
        )
    return named[0]


def _read_all(files: Sequence[Path], task: str, language_of: _LanguageOf, *, shared_contexts: bool) -> list[Item]:
    items: dict[tuple[str, str], Item] = {}
    for file in files:
        for item in _read(file, task, language_of, shared_contexts=shared_contexts):
            if items.setdefault((item.language, item.item_id), item) is not item:
                raise InputError(f"{file}: language {item.language!r}: field 'id' repeats {item.item_id!r}")
    if not items:
        raise InputError(f"{files[0].parent}: holds no items")
    return list(items.values())


def _read(file: Path, task: str, language_of: _LanguageOf, *, shared_contexts: bool) -> Iterator[Item]:
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
