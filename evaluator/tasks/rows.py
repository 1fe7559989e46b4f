"""The rows of any data set that `datasets` reads: Parquet, JSON, CSV, folders of
`save_to_disk`, never code.

`datasets` has not run loading scripts since version 4. Other formats are refused,
because some are pickles. It finds the files; those of JSON are parsed here, because
it takes texts that look like dates for timestamps, and large integers beside
fractions for floats; and those of CSV, because it shifts the fields of a row that has
one too many."""

import csv
import glob
import io
import itertools
import logging
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.core.errors import (
    Document,
    InputError,
    Json,
    counted,
    need_regular,
    of_kind,
    one_line,
    parse,
    read_bytes,
)
from evaluator.core.saved_data import USUAL_SPLITS, is_saved, saved_splits
from evaluator.core.text import code_of
from evaluator.tasks.base import Items, NoSplit
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
    ".tsv": "csv",
}
_SEPARATORS = ",;\t"
SUFFIXES = tuple(_LOADERS)
_PACKAGED = "datasets.packaged_modules."
# Suffixes of files that hold data, so that none is left out in silence.
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z")
_DATA = {*_LOADERS, *_PACKED, ".arrow", ".feather", ".orc", ".xls", ".xlsx"}
# What other programs write for a quote, a line's end, a tab or nothing. A lower letter
# behind it makes a command of TeX (\nu).
_ESCAPE = re.compile(r'\\"|\\[nrt](?![a-z])|\A\\N\Z')
_NO_DATA = ("dataset_infos.json", "dataset_info.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLocation:
    task: str  # in errors
    data: str  # a data set of the hub (`org/name`), a directory or a file
    local: bool
    config: str | None = None
    revision: str | None = None
    split: str | None = None  # None: `usual`, or else validation, test, or the only one
    usual: str | None = None

    def __str__(self) -> str:
        what = self.data if self.local else f"data set {self.data!r}"
        named = []
        for key in ("config", "split", "revision"):
            value = getattr(self, key)
            if value is not None:
                named.append(f"{key} {value!r}")
        return f"{what} ({', '.join(named)})" if named else what


@contextmanager
def rows_at(location: RowLocation) -> Iterator[tuple[str, Any]]:
    """The name of a location's split, and its rows; what local files were converted to is
    removed at the end.

    Raises InputError, in one line, for data that cannot be loaded, for a split that is
    not there or must be named, and for one without rows.
    """
    with ExitStack() as stack:
        splits = _load(location, stack)
        chosen, lacks = location.split, "name one with split"
        if chosen is None:
            usual = [name for name in (location.usual, *USUAL_SPLITS) if name in splits]
            chosen = usual[0] if usual else None
            if len(splits) == 1:
                (chosen,) = splits
        elif chosen not in splits:
            lacks = f"there is no split {chosen!r}"
        if chosen is None or chosen not in splits:
            raise NoSplit(
                f"task {location.task!r}: {location}: {lacks} (known:"
                f" {', '.join(splits)})"
            )
        if not len(splits[chosen]):
            raise InputError(f"{location}: has no rows (a header is none)")
        yield chosen, splits[chosen]


def _load(location: RowLocation, stack: ExitStack) -> Document:
    """Split -> its rows."""
    path = Path(location.data)
    if location.local and is_saved(path):
        return saved_splits(path)
    import datasets  # seconds of imports, for those who need it only

    # It logs every retry; the one error below is enough for users.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    options: Json = {}
    if (
        location.local
    ):  # the cache would copy local files and confuse two versions of them
        for file in (path, *path.rglob("*")):
            if file == path or file.suffix.lower() in _LOADERS:
                need_regular(file)
        options["cache_dir"] = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="resurface-rows-")
        )
    if location.revision is not None:
        options["revision"] = location.revision
    asked = [location.data]
    if location.config is not None:
        asked.append(location.config)
    if path.is_file() and location.local:
        loader = _LOADERS.get(path.suffix.lower())
        if loader is None:
            raise InputError(
                f"{location.data}: a file ending in {', '.join(_LOADERS)} is needed"
            )
        # a name, no pattern
        asked, options["data_files"] = [loader], glob.escape(location.data)
    try:
        return _splits(location, asked, options)
    except InputError:
        raise
    # Offline, a missing data set, a gated one, a broken file: each raises another
    # library's exceptions.
    except Exception as error:
        raise InputError(
            f"task {location.task!r}: {location}: cannot be loaded: {_reason(error, location)}"
        ) from error


def _splits(location: RowLocation, asked: Sequence[str], options: Document) -> Document:
    """Split -> its rows: the data set of `asked` and `options`. Raises InputError,
    and what `datasets` raises."""
    import datasets

    path = Path(location.data)
    builder = datasets.load_dataset_builder(*asked, **options)
    # The kind of files; the module's name where it is not one of those that ship with
    # `datasets`.
    format = type(builder).__module__
    for kind in type(builder).__mro__:
        if kind.__module__.startswith(_PACKAGED):
            format = kind.__module__.removeprefix(_PACKAGED).partition(".")[0]
            break
    if format not in _LOADERS.values():
        raise InputError(
            f"{location}: its files are {format!r}; only Parquet, JSON and CSV are read"
        )
    if location.local and path.is_dir() and not _lists_configs(path):
        left = left_out(path, itertools.chain(*builder.config.data_files.values()))
        if left:
            raise InputError(
                f"{location}: would leave out {', '.join(left)}: name one file, or give"
                " the folder files of one format, of which all or none are named after"
                " a split (train, validation, test)"
            )
    if format == "parquet":
        found: Document = datasets.load_dataset(*asked, **options)
        return found
    cache = options.get("cache_dir")
    download = datasets.DownloadConfig(cache_dir=cache, use_etag=False)
    manager = datasets.DownloadManager(download_config=download)
    files = manager.download_and_extract(dict(builder.config.data_files))
    rows_of = _json_rows if format == "json" else _csv_rows
    rows = {}
    for split, parts in files.items():
        rows[str(split)] = rows_of(manager.iter_files(parts))
    return rows


class ListedRows(list[Json]):
    """Rows that are parsed here: a column of JSON may have values of several types."""

    csv = False

    @property
    def column_names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self for name in row))

    def select_columns(self, names: Sequence[str]) -> Iterator[Json]:
        return ({name: row.get(name) for name in names} for row in self)


def _csv_rows(files: Iterable[str]) -> ListedRows:
    """The rows of CSV files, whose values are texts. The separator is what splits the
    header into the most names. Raises InputError that names file
    and line: for a row with more or fewer fields than the header, and for escapes,
    which CSV does not have."""
    rows = ListedRows()
    rows.csv = True
    for file in files:
        try:
            text = read_bytes(Path(file)).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
            raise InputError(
                f"{file}: not UTF-8 text (byte {error.start}: {error.reason}): save it"
                f" as such: iconv -f {'UTF-16' if wide else 'LATIN1'} -t UTF-8"
            ) from error
        csv.field_size_limit(max(len(text), csv.field_size_limit()))
        header = text.lstrip().splitlines()[:1]
        names_by = {
            each: next(csv.reader(header, delimiter=each), []) for each in _SEPARATORS
        }
        separator = max(names_by, key=lambda each: len(names_by[each]))
        reader = csv.reader(
            io.StringIO(text, newline=""), strict=True, delimiter=separator
        )
        names: list[str] = []
        try:
            for values in filter(None, reader):
                where = f"{file}: line {reader.line_num}"
                if not names:
                    names = values
                    _need_each_name_once(names, file)
                    continue
                if len(values) != len(names):
                    raise InputError(
                        f"{where}: has {counted(len(values), 'field')}, and the header"
                        f" {len(names)}: put a text that has the separator"
                        f" {separator!r} in quotes"
                    )
                row = dict(zip(names, values, strict=True))
                for name, value in row.items():
                    if _ESCAPE.search(value):
                        raise InputError(
                            f"{where}: column {name!r}: {one_line(value, 60)!r} has"
                            ' escapes, which CSV has not: double a quote (""), or'
                            " write JSON Lines"
                        )
                rows.append(row)
        except csv.Error as error:
            raise InputError(f"{file}: line {reader.line_num}: {error}") from error
    return rows


def _need_each_name_once(names: Sequence[str], file: str) -> None:
    """Raises InputError for two columns of one name: only one of them would be read."""
    for number, name in enumerate(names):
        if name and name in names[:number]:
            raise InputError(f"{file}: column {name!r} occurs twice")


def _json_rows(files: Iterable[str]) -> ListedRows:
    """The objects in files of JSON Lines, or of one list each. Raises InputError
    that names file and line."""
    rows = ListedRows()
    for file in files:
        content = read_bytes(Path(file))
        if content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            for number, row in enumerate(parse(content, file)):
                rows.append(of_kind(row, dict, f"{file}: entry {number}"))
        else:
            lines = list(json_lines(content, file))
            for line, row in lines:
                rows.append(of_kind(row, dict, f"{file}: {line}"))
            if len(lines) == 1 and _is_columns(rows[-1]):
                raise InputError(
                    f"{file}: one object, whose fields are columns of equal length:"
                    " write an object for each row"
                )
    return rows


def _is_columns(row: Json) -> bool:
    """Whether an object may hold a whole table: a list for each column."""
    columns = [len(each) for each in row.values() if isinstance(each, list)]
    return len(row) == len(columns) > 1 and min(columns) == max(columns) > 1


def json_lines(content: bytes, file: str) -> Iterator[tuple[str, Any]]:
    """The place ("line 3") and the value of each line that is not blank. Raises
    InputError that names file and line."""
    # Bytes: text mode would also end a line at characters that JSON strings may hold.
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield f"line {number}", parse(line, f"{file}: line {number}")


def left_out(folder: Path, read: Iterable[str | Path]) -> tuple[str, ...]:
    """The files below a folder that hold data, and are neither read nor in a folder
    that is."""
    known = {Path(file).resolve() for file in read}
    left = []
    for file in sorted(folder.rglob("*")):
        name, whole = file.relative_to(folder), file.resolve()
        hidden = any(part.startswith(".") for part in name.parts[:-1])
        if hidden or file.name.startswith("._") or file.name in _NO_DATA:
            continue
        if not _DATA.intersection(map(str.lower, file.suffixes)) or not file.is_file():
            continue
        if known.isdisjoint([whole, *whole.parents]):
            left.append(str(name))
    if len(left) > 10:
        left[10:] = [f"{len(left) - 10} more"]
    return tuple(left)


def _lists_configs(folder: Path) -> bool:
    """Whether a folder has the card of a repository of the hub, and the card lists
    configurations and their files."""
    card = folder / "README.md"
    return card.is_file() and "configs:" in card.read_text(
        encoding="utf-8", errors="replace"
    )


def _reason(error: Exception, location: RowLocation) -> str:
    """Why, in one line, with what can be done about it."""
    cause: BaseException = error
    # "An error occurred while generating the dataset" explains nothing; its cause does.
    while location.local and isinstance(cause.__cause__, Exception):
        cause = cause.__cause__
    text, advice = one_line(cause, 300).rstrip("."), ""
    offline = "offline" in text.lower() or "reach" in text
    if "gated" in text:
        advice = (
            ": accept its terms on its page, and log in (hf auth login, or HF_TOKEN)"
        )
    elif offline or isinstance(error, ConnectionError):
        files = f"{location.task}:DIR"
        advice = f": without a network, name a directory with its files ({files})"
    elif "scripts are no longer supported" in text:
        advice = ": try revision: refs/convert/parquet, which the hub makes of it"
    return text if location.local else text + advice


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
    found, unread = Items(), dict[str, None]()
    locations = list(_locations(task, data, source, said, local=local))
    for language, location in locations:
        with rows_at(location) as (split, rows):
            types = getattr(rows, "features", {})
            texts = Texts(csv=getattr(rows, "csv", False))
            fields = source.fields or _fields_by_name(rows.column_names, language)
            mapping = RowMapping(
                source.model_copy(update={"fields": fields}),
                task=task,
                language=language,
                where=str(location),
                texts=texts,
            )
            columns = mapping.columns(rows.column_names)
            if usual.fields is None:
                unread |= dict.fromkeys(rows.column_names)
            chosen = rows.select_columns(columns)
            for number, row in enumerate(chosen):
                name = f"{split}-{number:06d}"
                item = mapping.item(
                    decoded(row, types), name, f"row {number} (the first is 0)"
                )
                found.append(item)
            texts.finish()
            for name in columns:
                unread.pop(name, None)
    if local:
        found.left_out = left_out(
            Path(data), [location.data for _, location in locations]
        )
    if unread:
        found.left_out += (f"columns {', '.join(unread)}",)
    where = data if local else f"data set {data!r}"
    if not any(item.answers for item in found):
        raise InputError(
            f"task {task!r}: {where}: none of its {len(found)} rows has a right answer;"
            " test splits often hide theirs: name another with split"
        )
    return found


def _fields_by_name(columns: Sequence[str], language: str | None) -> Fields:
    """Each field is the column of its name, where there is one."""
    same = {name: name for name in Fields.model_fields if name in columns}
    if language is not None:
        same.pop("language", None)
    return Fields.model_validate(same)


def _locations(
    task: str, data: str, source: Source, said: Source, *, local: bool
) -> Iterator[tuple[str | None, RowLocation]]:
    """Each configuration with its language, which is None where a column says it."""
    path = Path(data)
    if not local:
        for language, config in source.configs.items():
            hub = {"config": config, "revision": source.revision, "split": source.split}
            yield language, RowLocation(task=task, data=data, local=False, **hub)
        return
    # A configuration that is no directory and no file is the affair of the data set's
    # card, or of whoever names it.
    listed, found = _lists_configs(path), False
    named = said.config is not None
    for language, config in source.configs.items():
        inner = _inside(path, language, config, said=named)
        if inner is None and named and not listed:
            raise InputError(
                f"task {task!r}: {data}: field 'config': there is no folder or file"
                f" {config!r}"
            )
        if inner is None and not listed and len(source.configs) > 1:
            continue
        found = True
        location = RowLocation(
            task=task,
            data=str(inner or data),
            local=True,
            config=config if listed and inner is None else None,
            split=said.split,
            usual=source.split,
        )
        yield language, location
    if not found:
        names = ", ".join(map(str, source.configs.values()))
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
    names = [config]
    if not said and language is not None:
        names += [language, code_of(language)]
    for name in names:
        files = [name, *(f"{name}{suffix}" for suffix in SUFFIXES)]
        if path.is_file() and path.name in files:
            return path
        for file in files:
            if (path / file).exists():
                return path / file
    return None
