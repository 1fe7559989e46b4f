"""Items of the user's own: one JSON object per line with `id, language, context, question, answers` (list of strings).

An optional `options` lists the distractors of a multiple-choice benchmark (gold answers in it are skipped). Other
fields are ignored, and so are blank lines.
"""

from __future__ import annotations

from pathlib import Path

from evaluator.core.errors import InputError, field, parse, strings, text_field
from evaluator.core.records import Item
from evaluator.tasks.base import Argument, Task


def read_jsonl(path: Path, task: str) -> list[Item]:
    """Every item of the file, in file order.

    Raises InputError with the line's number for a malformed item, and for an id that its language already has.
    """
    items = []
    first_seen: dict[tuple[str, str], int] = {}
    clusters: dict[tuple[str, str], str] = {}
    try:
        # Bytes: text mode would also end a line at characters that JSON strings may hold.
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}: line {number}"
        item = _item(parse(line, place), task, clusters, place)
        earlier = first_seen.setdefault((item.language, item.item_id), number)
        if earlier != number:
            raise InputError(f"{place}: field 'id' repeats {item.item_id!r} of line {earlier}")
        items.append(item)
    if not items:
        raise InputError(f"{path}: holds no items")
    return items


def _item(record: object, task: str, clusters: dict[tuple[str, str], str], place: str) -> Item:
    """One line's item. `clusters` remembers (language, context) -> the first item that has this context."""
    item_id, language = text_field(record, "id", place), text_field(record, "language", place)
    context = field(record, "context", str, place)
    answers = strings(field(record, "answers", list, place), f"{place}: field 'answers'")
    return Item(
        task=task,
        language=language,
        item_id=item_id,
        context=context,
        question=text_field(record, "question", place),
        answers=tuple(dict.fromkeys(answers)),
        cluster=clusters.setdefault((language, context), item_id) if context.strip() else item_id,
        options=_options(record, place),
    )


def _options(record: object, place: str) -> tuple[str, ...]:
    assert isinstance(record, dict)
    if record.get("options") is None:
        return ()
    options = strings(record["options"], f"{place}: field 'options'")
    blank = next((number for number, option in enumerate(options) if not option.strip()), None)
    if blank is not None:
        raise InputError(f"{place}: field 'options'[{blank}] is empty")
    return options


def _items(path: Path | None) -> list[Item]:
    assert path is not None, "the argument is required"
    return read_jsonl(path, TASK.name)


TASK = Task(
    name="jsonl",
    help="your own questions, a JSON object per line",
    argument=Argument("FILE", required=True),
    named_after="file",
    read_items=_items,
)
