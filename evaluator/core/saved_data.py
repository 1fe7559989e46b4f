"""Folders that `save_to_disk` of the library `datasets` wrote: Arrow files and
state.json, or such a folder a split."""

from pathlib import Path
from typing import Any

from evaluator.core.errors import (
    InputError,
    field,
    need_regular,
    of_kind,
    one_line,
    parse,
    read_bytes,
)

_STATE, _SPLITS = "state.json", "dataset_dict.json"
# of a task: without a named split, the first that exists
USUAL_SPLITS = ("validation", "test")
_WHOLE = "train"  # how a folder's only data set is called, if it does not say


def is_saved(path: Path) -> bool:
    return any((path / name).is_file() for name in (_STATE, _SPLITS))


def saved_files(path: Path) -> list[Path]:
    return [need_regular(file) for file in sorted(path.rglob("*")) if not file.is_dir()]


def saved_splits(path: Path) -> dict[str, Any]:
    """Split -> its rows, a `datasets.Dataset`. Raises InputError for a folder that
    cannot be read."""
    for file in saved_files(path):
        if file.name == _STATE:  # it names files, which must not lie elsewhere
            state = of_kind(parse(read_bytes(file), str(file)), dict, str(file))
            for entry in field(state, "_data_files", list, str(file)):
                name = field(entry, "filename", str, f"{file}: _data_files")
                if Path(name).name != name:
                    raise InputError(
                        f"{file}: field 'filename' is {name!r}, which is not in its"
                        " folder"
                    )
    import datasets  # seconds of imports

    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # a split that is missing, a broken file: whatever another library raises
        raise InputError(
            f"{path}: cannot be read as a folder of save_to_disk: {one_line(error)}"
        ) from error
    return (
        dict(found) if isinstance(found, dict) else {str(found.split or _WHOLE): found}
    )


def saved_rows(path: Path, *usual: str, columns: tuple[str, ...] = ()) -> Any:
    """The rows of the first `usual` split that there is, or of the only one. Raises
    InputError, also for columns."""
    splits = saved_splits(path)
    chosen = next(
        (name for name in usual if name in splits),
        None if len(splits) > 1 else next(iter(splits), None),
    )
    if chosen is None:
        raise InputError(
            f"{path}: name one of its splits:"
            f" {', '.join(str(path / name) for name in splits)}"
        )
    if lacking := [name for name in columns if name not in splits[chosen].column_names]:
        known = ", ".join(splits[chosen].column_names)
        raise InputError(
            f"{path}: split {chosen!r} has no column {lacking[0]!r} (known: {known})"
        )
    return splits[chosen].select_columns(list(columns)) if columns else splits[chosen]


def saved_texts(path: Path, *usual: str) -> list[str]:
    """The column `text`, row by row. Raises InputError as `saved_rows`, and for a
    row without a text."""
    texts = []
    for number, row in enumerate(saved_rows(path, *usual, columns=("text",))):
        if not isinstance(row["text"], str):
            raise InputError(
                f"{path}: row {number} (the first is 0): field 'text' is"
                f" {one_line(repr(row['text']), 40)}, not a text"
            )
        texts.append(row["text"])
    return texts
