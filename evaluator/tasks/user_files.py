"""Tasks of a user's own file: `jsonl`, questions, and `text`, running text for the
perplexity probe.

jsonl: one JSON object per line with `id, language, context, question, answers` (list
of strings). An optional `options` lists the distractors of a multiple-choice
benchmark, and `groups` names fields of the line whose values make rows of the tables:
`"groups": ["team"], "team": "billing"`. Blank lines are ignored. A field that looks like a misspelled one is
refused, and so is another name of one; other fields are named as left out.

text: any UTF-8 file; a folder of `save_to_disk` with a column `text`; or
`gazetteer`, the bundled passages in nine languages."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from evaluator.core.errors import InputError, field, read_bytes, strings, text_field
from evaluator.core.records import Item, groups_of
from evaluator.core.saved_data import USUAL_SPLITS, is_saved, saved_rows, saved_texts
from evaluator.tasks.base import Argument, Items, Task, shared_text
from evaluator.tasks.gazetteer import LANGUAGES, gazetteer_text
from evaluator.tasks.rows import json_lines
from evaluator.tasks.values import Texts

BUNDLED = "gazetteer"
_FIELDS = ("id", "language", "context", "question", "answers", "options", "groups")
_NEEDED = ("id", "language", "question", "answers")
# what other data sets call them
_SYNONYMS = {
    "choices": "options",
    "distractors": "options",
    "gold": "answers",
    "lang": "language",
    "passage": "context",
    "query": "question",
    "text": "context",
}
_EXAMPLE = (
    "a line of FILE; context, options (wrong ones) and groups (fields whose values"
    " make rows of the tables) are optional:\n"
    '{"id": "q1", "language": "english", "context": "Karo was founded in 1701.",'
    ' "question": "When was Karo founded?", "answers": ["1701"], "options": ["1689"],'
    ' "groups": ["team"], "team": "billing"}'
)


def read_jsonl(path: Path | None, task: str = "jsonl") -> list[Item]:
    """Every item, in order. Raises InputError with the line's number if malformed or
    an id is twice in a language."""
    assert path is not None, "the argument is required"
    items, unread = Items(), dict[str, None]()
    first_seen: dict[tuple[str, str], str] = {}
    # (language, shared text) -> the first item that has it
    clusters: dict[tuple[str, str], str] = {}
    for entry, record in _records(path):
        place = f"{path}: {entry}"
        groups = groups_of(_groups(record, place))
        unread |= _unread(record, place)
        missing = [name for name in _NEEDED if name not in record]
        if isinstance(record, dict) and len(missing) > 1:
            raise InputError(f"{place}: fields {', '.join(missing)} are missing")
        item_id = text_field(record, "id", place)
        language = text_field(record, "language", place)
        context = field({"context": "", **record}, "context", str, place)
        answers = strings(
            field(record, "answers", list, place), f"{place}: field 'answers'"
        )
        question = text_field(record, "question", place)
        options: tuple[str, ...] = ()
        if record.get("options") is not None:
            options = strings(record["options"], f"{place}: field 'options'")
        for at, option in enumerate(options):
            if not option.strip():
                raise InputError(f"{place}: field 'options'[{at}] is empty")
        earlier = first_seen.setdefault((language, item_id), entry)
        if earlier != entry:
            raise InputError(f"{place}: field 'id' repeats {item_id!r} of {earlier}")
        shared = shared_text(context, question, answers)
        cluster = clusters.setdefault((language, shared), item_id)
        items.append(
            Item(
                task=task,
                language=language,
                item_id=item_id,
                context=context,
                question=question,
                answers=tuple(dict.fromkeys(answers)),
                cluster=cluster,
                options=options,
                groups=groups,
            )
        )
    if unread:
        grouped = {cut.partition("=")[0] for item in items for cut in item.groups or ()}
        listed = [
            f"{name} in lines whose groups lack it" if name in grouped else name
            for name in unread
        ]
        fields = f"{', '.join(listed)} (known: {', '.join(_FIELDS)})"
        items.left_out = (f"fields {fields}",)
    return items


def _groups(record: Any, place: str) -> Iterator[tuple[str, str]]:
    """Name and value of each field that `groups` names; none where it is empty or
    null. Raises InputError."""
    if not isinstance(record, dict) or record.get("groups") is None:
        return
    for name in strings(field(record, "groups", list, place), f"{place}: groups"):
        if name not in record or "=" in name:
            raise InputError(f"{place}: field 'groups': the line has no field {name!r}")
        where = f"{place}: field {name!r}"
        text = Texts().read(record[name], name, where, alone=True, prose=True)
        if text:
            yield name, text


def _unread(record: Any, place: str) -> dict[str, None]:
    """The fields that no item has. Raises InputError for one that is nearly a known
    one which is missing, or its other name."""
    keys = record if isinstance(record, dict) else {}
    missing = [name for name in _FIELDS if name not in keys]
    unread: dict[str, None] = {}
    for key in map(str, keys):
        if key in _FIELDS:
            continue
        name = _SYNONYMS.get(key.lower(), key)
        if near := get_close_matches(name, missing, n=1, cutoff=0.75):
            raise InputError(
                f"{place}: unknown field {key!r}; did you mean {near[0]!r}?"
            )
        if key not in (keys.get("groups") or ()):
            unread[key] = None
    return unread


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line's value with its place, or each row's of a folder of `save_to_disk`.
    Raises InputError."""
    if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
        raise InputError(
            f"{path}: jsonl reads JSON Lines: a mapping names this file's columns"
            " (--task hf:MAPPING.yaml; docs/your-data.md, Any data set)"
        )
    if is_saved(path):
        for number, row in enumerate(saved_rows(path, *USUAL_SPLITS)):
            yield f"row {number} (the first is 0)", row
    else:
        yield from json_lines(read_bytes(path), str(path))


JSONL = Task(
    name="jsonl",
    help="your own questions, a JSON object per line",
    argument=Argument("FILE", required=True),
    named_after="file",
    example=_EXAMPLE,
    read_items=read_jsonl,
)


def read_text(path: Path | None) -> str:
    """A file's text, or passages that no calibration sees, a line each. Raises
    InputError if not UTF-8, or blank."""
    assert path is not None, "the argument is required"
    if path == Path(BUNDLED):
        return "\n".join(
            passage for language in LANGUAGES for passage in gazetteer_text(language)
        )
    saved = is_saved(path)
    try:
        text = "" if saved else read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 text (byte {error.start}: {error.reason})"
        ) from error
    if saved:
        text = "\n".join(saved_texts(path, *USUAL_SPLITS))
    if not text.strip():
        raise InputError(f"{path}: holds no text")
    return text


TEXT = Task(
    name="text",
    help="running text, for the perplexity probe",
    argument=Argument("FILE", required=True, words={BUNDLED: f"{BUNDLED}-text"}),
    named_after="file",
    read_text=read_text,
)
