"""Every item of a data set: its configurations one after another, each row as the mapping says (`source.py`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from evaluator.core.errors import InputError
from evaluator.core.records import Item
from evaluator.core.text import code_of
from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.rows import SUFFIXES, Place, Rows
from evaluator.tasks.source import Fields, Source


def read_data_set(task: str, data: str, usual: Source, said: Source, *, local: bool) -> list[Item]:
    """The items of every configuration, in the order of their rows.

    `usual` is what is known of the data set, `said` what the user says, which goes before. A hub's repository is named
    by `data`, or (`local`) a directory or file. A split, configuration or revision that is only usual is not asked of
    local files: a configuration is then the directory or file of its name or of its language, where there is one.

    Raises InputError, in one line, for data that cannot be loaded or that holds no item with an answer, and for a row
    that no item can be made of; it names data, row and field.
    """
    source = said.over(usual)
    items: dict[tuple[str, str], Item] = {}
    for language, place in _places(task, data, source, said, local=local):
        for item in _items(task, place, source, language):
            if items.setdefault((item.language, item.item_id), item) is not item:
                raise InputError(f"{place}: language {item.language!r}: field 'id' repeats {item.item_id!r}")
    found = list(items.values())
    where = data if local else f"data set {data!r}"
    if not found:
        raise InputError(f"task {task!r}: {where}: holds no items")
    if not any(item.answers for item in found):
        raise InputError(
            f"task {task!r}: {where}: none of its {len(found)} rows has a right answer; test splits often hide theirs: "
            "name another with split"
        )
    return found


def _items(task: str, place: Place, source: Source, language: str | None) -> Iterator[Item]:
    with Rows(place) as rows:
        fields = source.fields or _same_names(rows.columns, language)
        mapping = RowMapping(fields, task=task, language=language, where=str(place))
        for number, row in enumerate(rows.of(mapping.columns(rows.columns))):
            yield mapping.item(row, f"{rows.split}-{number:06d}", f"row {number}")


def _same_names(columns: Collection[str], language: str | None) -> Fields:
    """Without a mapping, each field is the column of its name, where there is one."""
    named = {name: name for name in Fields.model_fields if name in columns}
    if language is not None:
        named.pop("language", None)
    return Fields.model_validate(named)


def _places(task: str, data: str, source: Source, said: Source, *, local: bool) -> Iterator[tuple[str | None, Place]]:
    """Each configuration with its language, which is None where a column says it."""
    path = Path(data)
    if not local:
        for language, config in source.configs.items():
            hub = {"config": config, "revision": source.revision, "split": source.split}
            yield language, Place(task=task, data=data, local=False, **hub)
        return
    # A configuration that is no directory and no file is the affair of the data set's card, or of whoever names it.
    asked = path.is_dir() and (said.config is not None or _names_configurations(path))
    found = 0
    for language, config in source.configs.items():
        inner = _inside(path, language, config)
        if inner is None and not asked and len(source.configs) > 1:
            continue
        found += 1
        yield (
            language,
            Place(
                task=task,
                data=data if inner is None else str(inner),
                local=True,
                config=config if inner is None and asked else None,
                split=said.split,
                usual=source.split,
            ),
        )
    if not found:
        names = ", ".join(str(config) for config in source.configs.values())
        raise InputError(
            f"task {task!r}: {data}: holds nothing that is called like a configuration ({names}) or its language; "
            "for one language, say which (language: ...)"
        )


def _inside(path: Path, language: str | None, config: str | None) -> Path | None:
    """The directory or file of a configuration: what has its name, or the name or code of its language."""
    names = [name for name in (config, language, None if language is None else code_of(language)) if name is not None]
    if config is None:
        return None
    if path.is_file():
        return path if _called(path, names) else None
    for name in names:
        if (path / name).is_dir():
            return path / name
        for suffix in SUFFIXES:
            if (path / f"{name}{suffix}").is_file():
                return path / f"{name}{suffix}"
    return None


def _called(path: Path, names: Sequence[str]) -> bool:
    return path.name in names or any(path.name == f"{name}{suffix}" for name in names for suffix in SUFFIXES)


def _names_configurations(directory: Path) -> bool:
    """Whether a directory is a repository of the hub whose card lists its configurations."""
    card = directory / "README.md"
    return card.is_file() and "configs:" in card.read_text(encoding="utf-8", errors="replace")
