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
_MEASURED = ("ok", "truncated")  # statuses of records with an outcome
_KEPT = 4  # bases' answers to a task that are kept in memory


def to_table(records: Sequence[Record]) -> pa.Table:
    """Records as one Arrow table with the schema `RECORDS`, one row each."""
    columns = list(zip(*map(astuple, records), strict=True)) or [()] * len(RECORDS)
    return pa.table(dict(zip(RECORDS.names, columns, strict=True)), schema=RECORDS)


def failed_throughout(table: pa.Table) -> str | None:
    """The first error text if the engine failed on every item that it received; None
    if any was measured."""
    status = table["status"]
    if pc.any(pc.is_in(status, pa.array(_MEASURED))).as_py():
        return None
    failed = table.filter(pc.equal(status, "engine_error"))
    return (
        str(failed["text"][0].as_py() or "the engine failed")
        if failed.num_rows
        else None
    )


class RecordStore:
    def __init__(self, run_dir: Path) -> None:
        self.root = run_dir / "records"
        self._items = run_dir / "items"
        self._changed = threading.Condition()
        self._writing = 0  # threads that are in `append`
        self._closed = False
        self._reading = threading.Lock()
        self._greedy: OrderedDict[tuple[str, str], tuple[list[str], pa.Table]] = (
            OrderedDict()
        )
        # By checkpoint and task: the parts at the first call of `finished`, plus those
        # added, minus those removed.
        self._kept: dict[tuple[str, str], int] = {}

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
            new = not path.exists()
            write_atomically(path, content)
        finally:
            with self._changed:
                self._writing -= 1
                self._changed.notify_all()
        self._count(path, int(new))
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

    def finished(self, checkpoint: str, task: str, weights_digest: str) -> set[ItemKey]:
        """The items that have records. Raises InputError for a damaged part or other
        weights."""
        keys: set[ItemKey] = set()
        parts = self.parts(checkpoint, task)
        self._kept.setdefault((checkpoint, task), len(parts))
        for path in parts:
            table = _read_part(path, ["weights_digest", "language", "item_id"])
            digests = set(table["weights_digest"].unique().to_pylist())
            if digests - {weights_digest}:
                raise InputError(
                    f"{path}: weights_digest: records of other weights"
                    f" ({digests.pop()[:12]}...) than checkpoint {checkpoint!r} has now"
                    f" ({weights_digest[:12]}...); use a new --out"
                )
            keys.update(
                zip(
                    table["language"].to_pylist(),
                    table["item_id"].to_pylist(),
                    strict=True,
                )
            )
        return keys

    def need_kept(self) -> None:
        """Raises ResurfaceError if parts that this store counts as finished have
        disappeared."""
        for checkpoint, task in tuple(self._kept):
            self._need_kept(checkpoint, task, self.parts(checkpoint, task))

    def _count(self, part: Path, more: int) -> None:
        """Update the number of parts in the folder of `part`, if `finished` has
        counted it."""
        where = part.parent.parent.name, part.parent.name
        with self._changed:
            if where in self._kept:
                self._kept[where] += more

    def _need_kept(self, checkpoint: str, task: str, found: Sequence[object]) -> None:
        gone = self._kept.get((checkpoint, task), 0) - len(found)
        if gone > 0:
            raise ResurfaceError(
                f"{self.root / checkpoint / task}: {gone} finished parts were removed"
                " during the run; the same command evaluates their items again"
            )

    def greedy_answers(self, checkpoint: str, task: str) -> pa.Table:
        """The greedy answers of one checkpoint to the open prompts of one task.

        Columns: language, item_id, status, token_ids (null without an answer),
        thought_state and thought_ids. After a cut thought comes a second row: the
        answer that was forced. Raises InputError for a damaged part, and ResurfaceError
        if parts have disappeared, as their items would look unanswered. Thread-safe.
        The last few tables, which engines request again and again, stay in memory until
        their parts change.
        """
        with self._reading:
            folder = self.root / checkpoint / task
            names = _names(folder)
            self._need_kept(checkpoint, task, names)
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
        statuses = (
            _read_part(path, ["status"])["status"]
            for path in self._parts(checkpoint, task)
        )
        return any(
            pc.any(pc.is_in(status, pa.array(_MEASURED))).as_py() for status in statuses
        )

    def devices(self, checkpoint: str) -> set[str]:
        """The devices in the records of a checkpoint. Raises InputError for a
        damaged part."""
        found: set[str] = set()
        for path in self._parts(checkpoint, None):
            found.update(
                _read_part(path, ["device"])["device"].unique().drop_null().to_pylist()
            )
        return found

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
                self._count(path, -1)
        with self._reading:
            self._greedy.clear()

    def damaged(self) -> dict[Path, str]:
        """Every damaged part and why; each is read in full (2 ms) unless its bytes
        passed before. Raises InputError."""
        # late: it imports pandas, which an engine's process does not need
        from evaluator.store.reading import damaged

        return damaged(self.root, [path for _, _, path in self.tables()])

    def set_aside(self, part: Path) -> Path:
        """Move a part to RUN/damaged, so that its items are evaluated again; returns
        the new path."""
        target = move_into(
            self.root.parent / "damaged" / part.relative_to(self.root).parent, part
        )
        self._count(part, -1)
        return target

    def _parts(self, checkpoint: str, task: str | None) -> list[Path]:
        return (
            sorted((self.root / checkpoint).glob("*/*.parquet"))
            if task is None
            else self.parts(checkpoint, task)
        )

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
    columns = [
        "language",
        "item_id",
        "status",
        "token_ids",
        "thought_state",
        "thought_ids",
    ]
    found = [RECORDS.empty_table().select(columns)]
    for path in parts:
        part = _read_part(path, [*columns, "probe", "format"])
        chosen = pc.and_(
            pc.equal(part["probe"], "greedy"), pc.equal(part["format"], "open")
        )
        found.append(part.filter(chosen).select(columns))
    return pa.concat_tables(found, promote_options="default")


def _items_of(path: Path) -> set[ItemKey]:
    table = _read_part(path, ["language", "item_id"])
    return set(
        zip(table["language"].to_pylist(), table["item_id"].to_pylist(), strict=True)
    )


def _read_part(path: Path, columns: list[str]) -> pa.Table:
    # ParquetFile takes half the time of `read_table`.
    with _readable(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(columns=columns, use_threads=False).select(columns)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, KeyError) as error:
        raise InputError(
            f"{path}: not a readable part ({one_line(error)}); the same command moves"
            " it aside and makes it again"
        ) from error
