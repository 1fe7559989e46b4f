"""The run directory's records: append-only Parquet parts, each written whole or not at
all.

A part is written to a temporary file, synced and renamed, so readers and resumed runs
only see complete parts. All records of an item are in one part; an item in any part is
finished. Only one process writes: a driver that has lost its run directory to another
driver cannot rename files there (`files`, `Lease`).

    RUN/records/<checkpoint>/<task>/<shard>.parquet   the columns: docs/records.md
    RUN/damaged/<checkpoint>/<task>/<shard>.parquet   parts that became unreadable;
                                                      their items are evaluated again
    RUN/items/<task>.parquet                          the questions, for the report's
                                                      item view
"""

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import astuple

from evaluator.core.errors import InputError, ResurfaceError, one_line
from evaluator.core.files import (
    move_into,
    need_unfenced,
    parquet_bytes,
    write_atomically,
    write_parquet,
)
from evaluator.core.records import Item, Record
from evaluator.store.schema import ITEMS, RECORDS

ItemKey = tuple[str, str]  # (language, item_id), unique within a task
Drawn = tuple[str, int]  # a probe, and the seed of its records
_MEASURED = ("ok", "truncated")  # statuses of records with an outcome
_ANSWER = [  # the columns of a greedy answer
    *("language", "item_id", "status"),
    *("token_ids", "thought_state", "thought_ids"),
]
_KEPT = 4  # bases' answers to a task that are kept in memory
_FINISHED = ["weights_digest", "language", "item_id", "probe", "seed"]
# a part's digests, probes and items
Content = tuple[frozenset[str], frozenset[Drawn], tuple[ItemKey, ...]]


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


class RecordStore:
    def __init__(self, run_dir: Path) -> None:
        self.root = run_dir / "records"
        self._items = run_dir / "items"
        self._changed = threading.Condition()
        self._writing = 0  # threads that are in `append`
        self._closed = False
        self._reading = threading.Lock()
        # Of parts that were read: a start checks each, and needs its items after that.
        self._contents: dict[Path, Content] = {}
        self._keys: dict[ItemKey, ItemKey] = {}  # that all parts share
        self._greedy: OrderedDict[tuple[str, str], tuple[list[str], pa.Table]] = (
            OrderedDict()
        )

    def append(
        self, checkpoint: str, task: str, shard: str, part: pa.Table | bytes
    ) -> Path:
        """Write a finished shard; thread-safe. Raises InputError if the disk is
        full, ResurfaceError after `close`."""
        path = self.root / checkpoint / task / f"{shard}.parquet"
        content = part if isinstance(part, bytes) else parquet_bytes(part)
        with self._changed:
            if self._closed:
                raise ResurfaceError(
                    f"{path}: came after the run had ended, and was not written"
                )
            self._writing += 1
        try:
            write_atomically(path, content)
        finally:
            self._contents.pop(path, None)
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
        return path

    def close(self) -> None:
        """Wait for the running appends; later ones fail."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._writing)

    def parts(self, checkpoint: str, task: str) -> list[Path]:
        """The committed parts of one checkpoint and task, sorted by name."""
        folder = self.root / checkpoint / task
        return [folder / name for name in _names(folder)]

    def finished(
        self, checkpoint: str, task: str, weights_digest: str | None = None
    ) -> dict[ItemKey, frozenset[Drawn]]:
        """The probes of the parts that hold an item, with their seeds, by item. Raises
        InputError for a damaged part or other weights than `weights_digest`, if
        given."""
        probes: dict[ItemKey, frozenset[Drawn]] = {}
        for path in self.parts(checkpoint, task):
            if path not in self._contents:
                self._take(path, _read_part(path, _FINISHED))
            digests, names, keys = self._contents[path]
            if weights_digest is not None and (other := digests - {weights_digest}):
                raise InputError(
                    f"{path}: weights_digest: records of other weights"
                    f" ({min(other)[:12]}...) than checkpoint {checkpoint!r} has now"
                    f" ({weights_digest[:12]}...); use a new --out"
                )
            for key in keys:
                before = probes.get(key)
                probes[key] = names if before is None else before | names
        return probes

    def _take(self, path: Path, table: pa.Table) -> None:
        digests = frozenset(table["weights_digest"].unique().to_pylist())
        pairs = table.select(["probe", "seed"]).group_by(["probe", "seed"])
        rows = pairs.aggregate([]).to_pylist()
        names = frozenset((row["probe"], row["seed"]) for row in rows)
        keys = tuple(self._keys.setdefault(key, key) for key in _keys(table))
        self._contents[path] = digests, names, keys

    def greedy_answers(self, checkpoint: str, task: str) -> pa.Table:
        """The greedy answers of one checkpoint to the open prompts of one task.

        Columns: language, item_id, status, token_ids (null without an answer),
        thought_state and thought_ids. Raises InputError for a damaged part.
        Thread-safe. The last few tables, which engines request again and again, stay in
        memory until their parts change.
        """
        with self._reading:
            folder = self.root / checkpoint / task
            names = _names(folder)
            known, table = self._greedy.pop((checkpoint, task), (None, None))
            if known != names:
                table = _greedy_answers([folder / name for name in names])
            self._greedy[checkpoint, task] = names, table
            if len(self._greedy) > _KEPT:
                self._greedy.popitem(last=False)
            return table

    def measured(self, checkpoint: str, task: str | None = None) -> bool:
        """Whether any record has an outcome, on one task or on all. Raises
        InputError for a damaged part."""
        return any(
            _any_measured(_read_part(path, ["status"]))
            for path in self._parts(checkpoint, task)
        )

    def holds(self, checkpoint: str, task: str, item: ItemKey | None = None) -> bool:
        """Whether there are records, of any item or of `item`."""
        return any(
            item is None or item in _items_of(path)
            for path in self.parts(checkpoint, task)
        )

    def drop(
        self, checkpoint: str, task: str | None = None, item: ItemKey | None = None
    ) -> None:
        """Remove a checkpoint's parts (with `item`: those that hold it), so that
        their items are evaluated again."""
        for path in self._parts(checkpoint, task):
            if item is None or item in _items_of(path):
                need_unfenced(path)
                path.unlink(missing_ok=True)
        with self._reading:
            self._greedy.clear()

    def drop_probes(self, checkpoint: str, task: str, probes: Sequence[str]) -> None:
        """Remove the records of some probes, so that only these run again."""
        for path in self.parts(checkpoint, task):
            table = _read_part(path, None)
            of_probes = pc.is_in(table["probe"], pa.array(probes))
            left = table.filter(pc.invert(of_probes))
            if not left.num_rows:
                need_unfenced(path)
                path.unlink()
            elif left.num_rows < table.num_rows:
                write_parquet(left, path)
            self._contents.pop(path, None)

    def damaged(self) -> dict[Path, str]:
        """Every damaged part and why; each is read in full (2 ms). Raises InputError."""
        # late: it imports pandas, which an engine's process does not need
        from evaluator.store.reading import damaged

        return damaged([path for _, _, path in self.tables()], self._take)

    def set_aside(self, part: Path) -> Path:
        """Move a part to RUN/damaged, so that its items are evaluated again; returns
        the new path."""
        folder = self.root.parent / "damaged" / part.relative_to(self.root).parent
        return move_into(folder, part)

    def _parts(self, checkpoint: str, task: str | None) -> list[Path]:
        if task is not None:
            return self.parts(checkpoint, task)
        return sorted((self.root / checkpoint).glob("*/*.parquet"))

    def tables(self) -> Iterator[tuple[str, str, Path]]:
        """Every committed part as (checkpoint, task, path), in a fixed order."""
        for path in sorted(self.root.glob("*/*/*.parquet")):
            yield path.parent.parent.name, path.parent.name, path

    def write_items(
        self, task: str, items: Iterable[tuple[Item, Sequence[str]]]
    ) -> None:
        """Write a task's items with their options, for the report's item view and
        clustered intervals."""
        rows = [asdict(item) | {"options": options} for item, options in items]
        write_parquet(
            pa.Table.from_pylist(rows, schema=ITEMS), self._items / f"{task}.parquet"
        )

    def clean(self) -> None:
        """Remove temporary files of killed writers."""
        for stale in self.root.parent.glob("**/.*.writing"):
            stale.unlink(missing_ok=True)


def _names(folder: Path) -> list[str]:
    """The sorted file names of a folder's parts; empty without the folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    return []


def _greedy_answers(parts: Sequence[Path]) -> pa.Table:
    tables = [RECORDS.empty_table().select(_ANSWER)]
    for path in parts:
        part = _read_part(path, [*_ANSWER, "probe", "format"])
        greedy = pc.equal(part["probe"], "greedy")
        chosen = pc.and_(greedy, pc.equal(part["format"], "open"))
        tables.append(part.filter(chosen).select(_ANSWER))
    return pa.concat_tables(tables, promote_options="default")


def _items_of(path: Path) -> set[ItemKey]:
    return _keys(_read_part(path, ["language", "item_id"]))


def _keys(table: pa.Table) -> set[ItemKey]:
    columns = table["language"].to_pylist(), table["item_id"].to_pylist()
    return set(zip(*columns, strict=True))


def _read_part(path: Path, columns: list[str] | None) -> pa.Table:
    """Some columns of a part, or all."""
    try:
        # ParquetFile takes half the time of `read_table`.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read(columns=columns, use_threads=False)
            return table if columns is None else table.select(columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(
            f"{path}: not a readable part ({one_line(error)}); the same command moves"
            " it aside and makes it again"
        ) from error
