"""The rows of any data set that `datasets` reads: Parquet, JSON, CSV, folders of
`save_to_disk`, never code.

`datasets` has not run loading scripts since version 4. Other formats are refused,
because some are pickles. It finds the files; those of JSON are parsed here, because
it takes texts that look like dates for timestamps, and large integers beside
fractions for floats."""

import csv
import glob
import itertools
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.core.errors import (
    InputError,
    need_regular,
    of_kind,
    one_line,
    parse,
    read_bytes,
)
from evaluator.core.records import Item
from evaluator.core.saved_data import USUAL_SPLITS, is_saved, saved_splits
from evaluator.core.text import code_of
from evaluator.tasks.base import Items
from evaluator.tasks.mapping import RowMapping
from evaluator.tasks.source import Fields, Source
from evaluator.tasks.values import Texts, decoded

# Suffix of a file -> the loader of `datasets` that reads it.
_LOADERS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
}
SUFFIXES = tuple(_LOADERS)
_PACKAGED = "datasets.packaged_modules."
# Suffixes of files that hold data, so that none is left out in silence.
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z")
_DATA = {*_LOADERS, *_PACKED, ".tsv", ".arrow", ".feather", ".orc", ".xls", ".xlsx"}
_NO_DATA = ("dataset_infos.json", "dataset_info.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    task: str  # in errors
    data: str  # a data set of the hub (`org/name`), a directory or a file
    local: bool
    config: str | None = None
    revision: str | None = None
    split: str | None = None  # None: `usual`, or else validation, test, or the only one
    usual: str | None = None

    def __str__(self) -> str:
        said = {"config": self.config, "split": self.split, "revision": self.revision}
        named = ", ".join(
            f"{key} {value!r}" for key, value in said.items() if value is not None
        )
        what = self.data if self.local else f"data set {self.data!r}"
        return f"{what} ({named})" if named else what


@contextmanager
def rows_at(place: Place) -> Iterator[tuple[str, Any]]:
    """The name of a place's split, and its rows; what local files were converted to is
    removed at the end.

    Raises InputError, in one line, for data that cannot be loaded, and for a split that
    is not there or must be named.
    """
    with ExitStack() as stack:
        splits = _load(place, stack)
        usual = [name for name in (place.usual, *USUAL_SPLITS) if name in splits]
        chosen = place.split or (
            usual[0] if usual else next(iter(splits)) if len(splits) == 1 else None
        )
        if chosen is None or chosen not in splits:
            lacks = (
                "name one with split"
                if chosen is None
                else f"there is no split {chosen!r}"
            )
            raise InputError(
                f"task {place.task!r}: {place}: {lacks} (known: {', '.join(splits)})"
            )
        yield chosen, splits[chosen]


def _load(place: Place, stack: ExitStack) -> Mapping[str, Any]:
    """Split -> its rows."""
    path = Path(place.data)
    if place.local and is_saved(path):
        return saved_splits(path)
    import datasets  # seconds of imports, for those who need it only

    # It logs every retry; the one error below is enough for users.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    options: dict[str, Any] = {}
    if place.local:  # the cache would copy local files and confuse two versions of them
        for file in (
            path,
            *(each for each in path.rglob("*") if each.suffix.lower() in _LOADERS),
        ):
            need_regular(file)
        options["cache_dir"] = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="resurface-rows-")
        )
    if place.revision is not None:
        options["revision"] = place.revision
    asked: tuple[str, ...] = (
        place.data,
        *([] if place.config is None else [place.config]),
    )
    if path.is_file() and place.local:
        loader = _LOADERS.get(path.suffix.lower())
        if loader is None:
            raise InputError(
                f"{place.data}: a file ending in {', '.join(_LOADERS)} is needed"
            )
        # a name, no pattern
        asked, options["data_files"] = (loader,), glob.escape(place.data)
    try:
        return _splits(place, asked, options)
    except InputError:
        raise
    # Offline, a missing data set, a gated one, a broken file: each raises another
    # library's exceptions.
    except Exception as error:
        raise InputError(
            f"task {place.task!r}: {place}: cannot be loaded: {_reason(error, place)}"
        ) from error


def _splits(
    place: Place, asked: tuple[str, ...], options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Split -> its rows: the data set of `asked` and `options`. Raises InputError,
    and what `datasets` raises."""
    import datasets

    builder, path = datasets.load_dataset_builder(*asked, **options), Path(place.data)
    # The kind of files; the module's name where it is not one of those that ship with
    # `datasets`.
    modules = [
        kind.__module__
        for kind in type(builder).__mro__
        if kind.__module__.startswith(_PACKAGED)
    ]
    format = (
        modules[0].removeprefix(_PACKAGED).partition(".")[0]
        if modules
        else type(builder).__module__
    )
    if format not in _LOADERS.values():
        raise InputError(
            f"{place}: its files are {format!r}; only Parquet, JSON and CSV are read"
        )
    if place.local and path.is_dir() and not _lists_configs(path):
        left = left_out(path, itertools.chain(*builder.config.data_files.values()))
        if left:
            raise InputError(
                f"{place}: would leave out {', '.join(left)}: name one file, or give"
                " the folder files of one format, of which all or none are named after"
                " a split (train, validation, test)"
            )
    if format != "parquet":
        manager = datasets.DownloadManager(
            download_config=datasets.DownloadConfig(
                cache_dir=options.get("cache_dir"), use_etag=False
            )
        )
        files = manager.download_and_extract(dict(builder.config.data_files))
        if format == "json":
            return {
                str(split): _json_rows(manager.iter_files(its))
                for split, its in files.items()
            }
        for file in itertools.chain(*map(manager.iter_files, files.values())):
            _need_each_name_once(file)
    found: Mapping[str, Any] = datasets.load_dataset(*asked, **options)
    # whose values are guessed otherwise: 007 would be a number, and NA nothing
    if format == "csv":
        columns = next(iter(found.values())).column_names
        features = datasets.Features(
            {column: datasets.Value("string") for column in columns}
        )
        found = datasets.load_dataset(
            *asked, **options, features=features, keep_default_na=False
        )
    return found


def _need_each_name_once(file: str) -> None:
    """Raises InputError for two columns of one name in a CSV file: only one of them
    would be read."""
    with open(file, encoding="utf-8-sig", errors="replace", newline="") as stream:
        names = [name for name in next(filter(None, csv.reader(stream)), []) if name]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(f"{file}: column {name!r} occurs twice")


class JsonRows(list[dict[str, Any]]):
    """Rows as JSON has them: a column may have values of several types."""

    @property
    def column_names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self for name in row))

    def select_columns(self, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        return ({name: row.get(name) for name in names} for row in self)


def _json_rows(files: Iterable[str]) -> JsonRows:
    """The objects in files of JSON Lines, or of one list each. Raises InputError
    that names file and line."""
    rows = JsonRows()
    for file in files:
        content = read_bytes(Path(file))
        if content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            values = [
                (f"{file}: entry {number}", row)
                for number, row in enumerate(parse(content, file))
            ]
        else:
            lines = [
                (f"{file}: line {number}", line)
                for number, line in enumerate(content.split(b"\n"), start=1)
            ]
            values = [(at, parse(line, at)) for at, line in lines if line.strip()]
        rows += [of_kind(row, dict, at) for at, row in values]
    return rows


def left_out(folder: Path, read: Iterable[str | Path]) -> tuple[str, ...]:
    """The files below a folder that hold data, and are neither read nor in a folder
    that is."""
    known = {Path(file).resolve() for file in read}
    left = []
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        hidden = any(
            part.startswith(".") for part in name.parts[:-1]
        ) or file.name.startswith("._")
        holds_data = (
            _DATA.intersection(map(str.lower, file.suffixes))
            and file.name not in _NO_DATA
            and file.is_file()
        )
        if (
            holds_data
            and not hidden
            and known.isdisjoint([file.resolve(), *file.resolve().parents])
        ):
            left.append(str(name))
    return (*left[:10], f"{len(left) - 10} more") if len(left) > 10 else tuple(left)


def _lists_configs(folder: Path) -> bool:
    """Whether a folder has the card of a repository of the hub, and the card lists
    configurations and their files."""
    card = folder / "README.md"
    return card.is_file() and "configs:" in card.read_text(
        encoding="utf-8", errors="replace"
    )


def _reason(error: Exception, place: Place) -> str:
    """Why, in one line, with what can be done about it."""
    causes = [error]
    while causes[-1].__cause__ is not None and isinstance(
        causes[-1].__cause__, Exception
    ):
        causes.append(causes[-1].__cause__)
    # "An error occurred while generating the dataset" explains nothing; its cause does.
    text = one_line(causes[-1] if place.local else error, 300).rstrip(".")
    if place.local:
        return text
    if "gated" in text:
        return (
            f"{text}: accept its terms on its page, and log in (hf auth login, or"
            " HF_TOKEN)"
        )
    if (
        isinstance(error, ConnectionError)
        or "offline" in text.lower()
        or "reach" in text
    ):
        return (
            f"{text}: without a network, name a directory with its files"
            f" ({place.task}:DIR)"
        )
    if "scripts are no longer supported" in text:
        return f"{text}: try revision: refs/convert/parquet, which the hub makes of it"
    return text


def read_data_set(
    task: str, data: str, usual: Source, said: Source, *, local: bool
) -> Items:
    """The items of every configuration, in the order of their rows.

    The user's settings `said` override the preset `usual`. `data` names a repository on
    the hub, or (`local`) a directory or file. Local files ignore the preset's split,
    configuration and revision: a configuration is then the directory or file with its
    name or its language's, if one exists. Raises InputError in one line for data that
    cannot be loaded or has no answered item, and for a malformed row; it names data,
    row and field.
    """
    source = said.over(usual)
    items: dict[tuple[str, str], Item] = {}
    places = list(_places(task, data, source, said, local=local))
    for language, place in places:
        with rows_at(place) as (split, rows):
            fields = source.fields
            # each field is the column of its name, where there is one
            if fields is None:
                same = {
                    name: name
                    for name in Fields.model_fields
                    if name in rows.column_names
                }
                if language is not None:
                    same.pop("language", None)
                fields = Fields.model_validate(same)
            types = getattr(rows, "features", {})
            texts = Texts(
                csv=getattr(getattr(rows, "info", None), "builder_name", None) == "csv"
            )
            mapping = RowMapping(
                fields, task=task, language=language, where=str(place), texts=texts
            )
            for number, row in enumerate(
                rows.select_columns(mapping.columns(rows.column_names))
            ):
                item = mapping.item(
                    decoded(row, types), f"{split}-{number:06d}", f"row {number}"
                )
                if items.setdefault((item.language, item.item_id), item) is not item:
                    raise InputError(
                        f"{place}: language {item.language!r}: field 'id' repeats"
                        f" {item.item_id!r}"
                    )
            texts.finish()
    found = Items(items.values())
    if local:
        found.left_out = left_out(Path(data), [place.data for _, place in places])
    where = data if local else f"data set {data!r}"
    if not found:
        raise InputError(f"task {task!r}: {where}: holds no items")
    if not any(item.answers for item in found):
        raise InputError(
            f"task {task!r}: {where}: none of its {len(found)} rows has a right answer;"
            " test splits often hide theirs: name another with split"
        )
    return found


def _places(
    task: str, data: str, source: Source, said: Source, *, local: bool
) -> Iterator[tuple[str | None, Place]]:
    """Each configuration with its language, which is None where a column says it."""
    path = Path(data)
    if not local:
        for language, config in source.configs.items():
            hub = {"config": config, "revision": source.revision, "split": source.split}
            yield language, Place(task=task, data=data, local=False, **hub)
        return
    # A configuration that is no directory and no file is the affair of the data set's
    # card, or of whoever names it.
    asked = _lists_configs(path)
    found = 0
    for language, config in source.configs.items():
        inner = _inside(path, language, config, said=said.config is not None)
        if inner is None and said.config is not None and not _lists_configs(path):
            raise InputError(
                f"task {task!r}: {data}: field 'config': there is no folder or file"
                f" {config!r}"
            )
        if inner is None and not asked and len(source.configs) > 1:
            continue
        found += 1
        at, kept = (
            (data, config if asked else None) if inner is None else (str(inner), None)
        )
        yield (
            language,
            Place(
                task=task,
                data=at,
                local=True,
                config=kept,
                split=said.split,
                usual=source.split,
            ),
        )
    if not found:
        names = ", ".join(str(config) for config in source.configs.values())
        raise InputError(
            f"task {task!r}: {data}: has nothing with the name of a configuration"
            f" ({names}) or its language; for one language, say which (language: ...)"
        )


def _inside(
    path: Path, language: str | None, config: str | None, *, said: bool
) -> Path | None:
    """The directory or file with the name of a configuration, or, unless users
    `said` it, that of its language."""
    if config is None:
        return None
    names = (
        [config]
        if said or language is None
        else [name for name in (config, language, code_of(language)) if name]
    )
    if path.is_file():
        called = {*names, *(f"{name}{suffix}" for name in names for suffix in SUFFIXES)}
        return path if path.name in called else None
    for name in names:
        if (path / name).is_dir():
            return path / name
        for suffix in SUFFIXES:
            if (path / f"{name}{suffix}").is_file():
                return path / f"{name}{suffix}"
    return None
