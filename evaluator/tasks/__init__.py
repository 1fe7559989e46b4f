"""What is asked: the registry of tasks, from the bundled `gazetteer` to readers of public data sets and of user files.

    data = load_task("xquad:../shared/data/xquad", ["en", "th"])
    for language, pool in data.pools.items():
        subset = select(pool, 200)

An item is named by (task, language, item_id): the parallel questions of XQuAD have one id in all twelve languages.
`text:FILE` is the one task without items: its text is for the perplexity probe.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evaluator.errors import InputError, unknown
from evaluator.records import Item
from evaluator.tasks import gazetteer, hub, jsonl, squad, text
from evaluator.tasks.selection import DEEP_ITEMS, gold_option, is_excluded, select

__all__ = [
    "DEEP_ITEMS",
    "TASKS",
    "TaskData",
    "check_task",
    "gold_option",
    "is_excluded",
    "load_task",
    "select",
    "task_name",
]

TASKS = ("gazetteer", "jsonl", "text", "tydiqa", "xquad")
_NEED_A_FILE = ("jsonl", "text")

_HUB: Mapping[str, Callable[[], list[Item]]] = {"tydiqa": hub.load_tydiqa, "xquad": hub.load_xquad}
_FILES: Mapping[str, Callable[[Path], list[Item]]] = {"tydiqa": squad.read_tydiqa, "xquad": squad.read_xquad}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """A task with everything that it can ask."""

    name: str  # what records call it; safe as the name of a directory
    digest: str  # SHA-256 (hex) over every item of every language: identifies the data
    pools: Mapping[str, tuple[Item, ...]]  # language -> all its items in file order; the languages asked for, in order
    every_pool: Mapping[str, tuple[Item, ...]]  # the same for all languages of the task: `unrelated` draws from these
    text: str | None = None  # of a text task, which has no pools


def load_task(spec: str, languages: Sequence[str] | None, name: str | None = None) -> TaskData:
    """The items of `TASK` or `TASK:PATH` in `languages` (None: all that it has), or the text of `text:FILE`.

    `name` is what records are to call the task. Raises InputError for an unknown task or language, and for data that is
    missing or is not what the task reads.
    """
    task, path = _parse_spec(spec)
    name = task_name(spec, name)
    if task == "text":
        assert path is not None
        return _load_text(spec, path, languages, name)
    items = [item if item.task == name else replace(item, task=name) for item in _load(task, name, path)]
    every_pool = {language: tuple(pool) for language, pool in sorted(_by_language(items).items())}
    return TaskData(
        name=name,
        digest=_digest(item for pool in every_pool.values() for item in pool),
        pools={language: every_pool[language] for language in _asked(name, every_pool, languages)},
        every_pool=every_pool,
    )


def _load_text(spec: str, path: Path, languages: Sequence[str] | None, name: str) -> TaskData:
    if languages is not None:
        raise InputError(f"task {spec!r}: languages: a text has none to choose from")
    content = text.bundled_text() if path == Path(text.BUNDLED) else text.read_text(path)
    digest = hashlib.sha256(content.encode("utf-8")).hexdigest()
    return TaskData(name=name, digest=digest, pools={}, every_pool={}, text=content)


def task_name(spec: str, name: str | None = None) -> str:
    """What records call a task: `name` if there is one, else a file's stem, else the task itself.

    Raises InputError as `check_task` does.
    """
    task, path = _parse_spec(spec)
    if name is not None:
        return name
    if task == "text" and path == Path(text.BUNDLED):
        return f"{text.BUNDLED}-text"
    return (_file_task_name(path) if task in _NEED_A_FILE and path is not None else task) or task


def check_task(spec: str) -> None:
    """Raises InputError, without reading any data, for an unknown task or a path that is missing or out of place."""
    _parse_spec(spec)


def _parse_spec(spec: str) -> tuple[str, Path | None]:
    task, colon, rest = spec.partition(":")
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    if task == "gazetteer" and colon:
        raise InputError(f"task {spec!r}: 'gazetteer' is bundled and takes no path")
    if colon and not rest:
        raise InputError(f"task {spec!r}: the path after ':' is empty")
    if task in _NEED_A_FILE and not rest:
        raise InputError(f"task {task!r}: name its file, as in {task}:FILE")
    path = Path(rest).expanduser() if rest else None
    if task == "text" and rest == text.BUNDLED:
        return task, path
    if path is not None and not path.exists():
        raise InputError(f"task {spec!r}: {path}: no such file or directory")
    if task in _NEED_A_FILE and path is not None and path.is_dir():
        raise InputError(f"task {spec!r}: {path}: is a directory, not a file")
    return task, path


def _load(task: str, name: str, path: Path | None) -> list[Item]:
    if task == "gazetteer":
        return [item for language in gazetteer.LANGUAGES for item in gazetteer.gazetteer_items(language)]
    if path is None:
        return _HUB[task]()
    return jsonl.read_jsonl(path, name) if task == "jsonl" else _FILES[task](path)


def _file_task_name(path: Path) -> str:
    """The file's stem with everything replaced that could upset a file system or a shell; empty if nothing is left."""
    return re.sub(r"[^\w.-]+", "-", path.stem).strip("-.")


def _by_language(items: Iterable[Item]) -> dict[str, list[Item]]:
    pools: dict[str, list[Item]] = {}
    for item in items:
        pools.setdefault(item.language, []).append(item)
    return pools


def _asked(task: str, known: Iterable[str], languages: Sequence[str] | None) -> list[str]:
    if languages is None:
        return list(known)
    if not languages:
        raise InputError(f"task {task!r}: no language is asked for")
    for language in languages:
        if language not in known:
            raise unknown(f"language of task {task!r}:", language, known)
    return list(dict.fromkeys(languages))


def _digest(items: Iterable[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        # Without the task's name: a file that is renamed holds the same data.
        fields = (
            *(item.language, item.item_id, item.context, item.question),
            *(item.answers, item.cluster, item.options),
        )
        digest.update(json.dumps(fields, ensure_ascii=False).encode("utf-8") + b"\n")
    return digest.hexdigest()
