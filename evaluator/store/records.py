"""The run directory's records: append-only Parquet parts, each written whole or not at
all.

A part is written to a temporary file, synced and renamed, so readers and resumed runs
only see complete parts. Only one process writes: a driver that has lost its run
directory to another driver cannot rename files there (`files`, `Lease`). No part is ever
changed. What the engine failed on is asked again, and a later part has the answer.

    RUN/records/<key>/part-*.parquet   the columns: docs/records.md; keys: `cells.py`.
                                       A name has the part's number and its CRC-32
    RUN/damaged/<key>/part-*.parquet   parts that became unreadable; their items are
                                       evaluated again
    RUN/items/<task>.parquet           the questions, for the report's item view
"""

import contextlib
import os
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import astuple

from evaluator.core.errors import InputError, ResurfaceError, one_line
from evaluator.core.files import (
    move_into,
    parquet_bytes,
    write_atomically,
    write_parquet,
)
from evaluator.core.records import Item, Record
from evaluator.store.schema import ITEMS, RECORDS

ItemKey = tuple[str, str]  # (language, item_id), unique within a task
Drawn = tuple[str, str, int]  # the probe, format and seed of some records
Answered = dict[ItemKey, frozenset[Drawn]]
NONE: frozenset[Drawn] = frozenset()
# the text of records that wait for the base's
BASE_FAILED = "the engine failed on its base's greedy answer"
# why a part is damaged that can be read: none is ever changed
OTHER_BYTES = "its bytes have another checksum than its name"
_MEASURED = ("ok", "truncated")  # statuses of records with an outcome
_ANSWER = [  # the columns of a greedy answer
    *("language", "item_id", "status"),
    *("token_ids", "thought_state", "thought_ids"),
]
_WRITTEN = ("greedy", "sample")  # probes
# its number, and its checksum
_PART = re.compile(r"part-([0-9]+)(?:-([0-9a-f]{8}))?\.parquet\Z")
_KEPT = 4  # bases' answers to a task that are kept in memory
_DRAWN = ["probe", "format", "seed"]
_FINISHED = ["language", "item_id", *_DRAWN, "status", "text"]


class Content(NamedTuple):
    """What a part holds. All of its items have the same records, but for those that
    failed."""

    drawn: frozenset[Drawn]
    items: tuple[ItemKey, ...]
    failed: Mapping[ItemKey, frozenset[Drawn]]


def to_table(records: Sequence[Record]) -> pa.Table:
    """Records as one Arrow table with the schema `RECORDS`, one row each."""
    columns = list(zip(*map(astuple, records), strict=True)) or [()] * len(RECORDS)
    return pa.table(dict(zip(RECORDS.names, columns, strict=True)), schema=RECORDS)


def failed_throughout(table: pa.Table) -> str | None:
    """The first error text if the engine failed on every item that it received; None
    if any was measured."""
    failed = table.filter(pc.equal(table["status"], "engine_error"))
    if _any_measured(table) or not failed.num_rows:
        return None
    return str(failed["text"][0].as_py() or "the engine failed")


def _any_measured(table: pa.Table) -> bool:
    return bool(pc.any(pc.is_in(table["status"], pa.array(_MEASURED))).as_py())


def unanswered(table: pa.Table) -> pa.ChunkedArray:
    """The records that are asked again, as a mask: the engine failed on them, or on the
    answer of the base that they read."""
    status, waits = table["status"], pc.equal(table["text"], BASE_FAILED)
    waits = pc.and_(pc.equal(status, "excluded"), pc.fill_null(waits, False))
    return pc.or_(pc.equal(status, "engine_error"), waits)


class RecordStore:
    def __init__(self, run_dir: Path) -> None:
        self.root = run_dir / "records"
        self._items = run_dir / "items"
        self._changed = threading.Condition()
        self._writing = 0  # threads that are in `append`
        self._closed = False
        self._reading = threading.Lock()
        self._next: dict[str, int] = {}  # by key: the number of its next part
        # Of parts that were read: a start checks each, and needs its items after that.
        self._contents: dict[Path, Content] = {}
        self._keys: dict[ItemKey, ItemKey] = {}  # that all parts share
        self._greedy: OrderedDict[str, tuple[list[str], pa.Table]] = OrderedDict()

    def append(self, key: str, part: pa.Table | bytes) -> Path:
        """Write a finished shard; thread-safe. Raises InputError if the disk is
        full, ResurfaceError after `close`."""
        content = part if isinstance(part, bytes) else parquet_bytes(part)
        checksum = crc32(content)
        with self._changed:
            number = self._next.get(key)
            if number is None:
                number = max(map(_number, _names(self.root / key)), default=-1) + 1
            name = f"part-{number:06d}-{checksum:08x}.parquet"
            path = self.root / key / name
            if self._closed:
                raise ResurfaceError(
                    f"{path}: came after the run had ended, and was not written"
                )
            self._next[key] = number + 1
            self._writing += 1
        try:
            write_atomically(path, content)
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
        return path

    def close(self) -> None:
        """Wait for the running appends; later ones fail."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._writing)

    def parts(self, key: str) -> list[Path]:
        """The committed parts of a key, in the order of their writing."""
        return [self.root / key / name for name in _names(self.root / key)]

    def content(self, part: Path) -> Content:
        """Raises InputError for a damaged part."""
        if part not in self._contents:
            self.note(part, _read_part(part, _FINISHED))
        return self._contents[part]

    def finished(self, key: str) -> Answered:
        """The records of each item that need not be made again. Raises InputError for
        a damaged part."""
        answered: Answered = {}
        for path in self.parts(key):
            drawn, items, failed = self.content(path)
            for item in items:
                before, own = answered.get(item), drawn
                if failed and item in failed:
                    own = drawn - failed[item]
                answered[item] = own if before is None else before | own
        return answered

    def note(self, path: Path, table: pa.Table) -> None:
        """Remember what a part holds that was read."""
        drawn = table.group_by(_DRAWN, use_threads=False).aggregate([])
        self._contents[path] = Content(
            frozenset(zip(*drawn.select(_DRAWN).to_pydict().values(), strict=True)),
            tuple(self._keys.setdefault(key, key) for key in _keys(table)),
            _by_item(table.filter(unanswered(table))),
        )

    def take(
        self,
        other: "RecordStore",
        key: str,
        due: Answered,
        source: str = "",
        limit: int = 0,
    ) -> int:
        """Copy what this store lacks of `due` and another one has; returns the number
        of items with copied records. `source`: the key there, if it is another one;
        `limit`: without written answers of so many tokens. Raises InputError for a
        damaged part of it."""
        copied, answered = set[ItemKey](), self.finished(key)
        for path, alike in other.offers(source or key, answered, due, limit):
            table = _read_part(path, RECORDS.names).cast(RECORDS)
            rows = [
                *zip(*table.select(_FINISHED[:5]).to_pydict().values(), strict=True)
            ]
            for some, chosen in alike.items():
                wanted = {(*item, *each) for item in chosen for each in some}
                places = [place for place, row in enumerate(rows) if row in wanted]
                self.append(key, table.take(pa.array(places)))
            copied.update(*alike.values())
        return len(copied)

    def offers(
        self, key: str, answered: Answered, due: Answered, limit: int
    ) -> Iterator[tuple[Path, Mapping[frozenset[Drawn], list[ItemKey]]]]:
        """What another store copies: of each part, items by their records."""
        answered = {**answered}  # and what earlier parts offer
        for path in self.parts(key):
            drawn, items, failed = self.content(path)
            if all(due.get(item, NONE) <= answered.get(item, NONE) for item in items):
                continue  # a resumed run has copied them
            if is_as_written(path) is False:
                raise _unreadable(path, OTHER_BYTES)
            cut = _cut(path, limit) if limit else {}
            alike: defaultdict[frozenset[Drawn], list[ItemKey]] = defaultdict(list)
            for item in items:
                before = answered.get(item, NONE)
                lacking = (due.get(item, NONE) - before) & drawn
                lacking -= cut.get(item, NONE)
                if item not in failed and lacking:
                    alike[lacking].append(item)
                    answered[item] = before | lacking
            if alike:
                yield path, alike

    def greedy_answers(self, key: str) -> pa.Table:
        """The greedy answers to open prompts under a key.

        Columns: language, item_id, status, token_ids (null without an answer),
        thought_state and thought_ids. Raises InputError for a damaged part.
        Thread-safe. The last few tables, which engines request again and again, stay in
        memory until there are more parts.
        """
        with self._reading:
            names = _names(self.root / key)
            known, table = self._greedy.pop(key, (None, None))
            if known != names:
                table = _greedy_answers([self.root / key / name for name in names])
            self._greedy[key] = names, table
            if len(self._greedy) > _KEPT:
                self._greedy.popitem(last=False)
            return table

    def measured(self, key: str) -> bool:
        """Whether any record has an outcome. Raises InputError for a damaged part."""
        return any(
            _any_measured(_read_part(path, ["status"])) for path in self.parts(key)
        )

    def set_aside(self, part: Path) -> Path:
        """Move a part to RUN/damaged, so that its items are evaluated again; returns
        the new path."""
        folder = self.root.parent / "damaged" / part.relative_to(self.root).parent
        return move_into(folder, part)

    def every_part(self) -> Iterator[Path]:
        """Every committed part, in a fixed order."""
        yield from sorted(self.root.glob("*/*.parquet"))

    def write_items(
        self, task: str, items: Sequence[tuple[Item, Sequence[str]]]
    ) -> None:
        """Write a task's items with their options, for the report's item view and
        clustered intervals."""
        listed, options = zip(*items, strict=True) if items else ((), ())
        columns = {
            name: [getattr(item, name) for item in listed] for name in ITEMS.names
        }
        table = pa.table(columns | {"options": list(options)}, schema=ITEMS)
        write_parquet(table, self._items / f"{task}.parquet")

    def clean(self) -> None:
        """Remove temporary files of killed writers."""
        for stale in self.root.parent.glob("**/.*.writing"):
            stale.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    """The sorted file names of a folder's parts; empty without the folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    return []


def _number(name: str) -> int:
    """Of a part, by its file's name; -1 of another file."""
    number = _PART.match(name)
    return -1 if number is None else int(number[1])


def is_as_written(part: Path) -> bool | None:
    """Whether a part's bytes have the checksum of its name. None: it has none, or the
    system cannot read it."""
    name = _PART.match(part.name)
    with contextlib.suppress(OSError):
        if name is not None and name[2] is not None:
            return f"{crc32(part.read_bytes()):08x}" == name[2]
    return None


def _greedy_answers(parts: Sequence[Path]) -> pa.Table:
    """The last answer to each item."""
    tables = [RECORDS.empty_table().select(_ANSWER)]
    for path in parts:
        part = _read_part(path, [*_ANSWER, "probe", "format"])
        greedy = pc.equal(part["probe"], "greedy")
        chosen = pc.and_(greedy, pc.equal(part["format"], "open"))
        tables.append(part.filter(chosen).select(_ANSWER))
    return pa.concat_tables(tables, promote_options="default")


def _by_item(table: pa.Table) -> Answered:
    found: defaultdict[ItemKey, set[Drawn]] = defaultdict(set)
    columns = table.select(_FINISHED[:5]).to_pydict().values()
    for language, item_id, *of in zip(*columns, strict=True):
        found[language, item_id].add((of[0], of[1], of[2]))
    return {item: frozenset(some) for item, some in found.items()}


def _cut(path: Path, limit: int) -> Answered:
    """The written answers of so many tokens or more."""
    table = _read_part(path, [*_FINISHED[:5], "token_ids"])
    written = pc.is_in(table["probe"], pa.array(_WRITTEN))
    long = pc.greater_equal(pc.list_value_length(table["token_ids"]), limit)
    return _by_item(table.filter(pc.and_(written, pc.fill_null(long, False))))


def _keys(table: pa.Table) -> Iterator[ItemKey]:
    names = ["language", "item_id"]
    each_once = table.group_by(names, use_threads=False).aggregate([])
    return zip(*each_once.select(names).to_pydict().values(), strict=True)


def _read_part(path: Path, columns: list[str]) -> pa.Table:
    try:
        # ParquetFile takes half the time of `read_table`.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns=columns, use_threads=False).select(columns)
    except (pa.ArrowException, OSError, KeyError, UnicodeError) as error:
        raise _unreadable(path, one_line(error)) from error


def _unreadable(path: Path, why: str) -> InputError:
    return InputError(
        f"{path}: not a readable part ({why}); its run's command moves it aside and"
        " makes it again"
    )
