"""Reads a run directory: records, items, verdicts and run.json."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evaluator.core.errors import Document, InputError, mapping_at, one_line
from evaluator.store import schema
from evaluator.store.cells import Cell, Cells
from evaluator.store.records import OTHER_BYTES, RecordStore, is_as_written, unanswered

# Columns that every part of records must have.
_NEEDED = {*schema.READ_RECORDS, "weights_digest", "language", "item_id"}
_DRAWN = ("probe", "format", "seed")
_RECORD = ("language", "item_id", *_DRAWN, "index")  # in a cell
# parts that are read at a time; more threads wait for each other's Python
_READERS = 3


def cell_parts(run_dir: Path) -> Mapping[Cell, Sequence[Path]]:
    """The committed parts of every cell that has any, in the order of their writing; of
    a run of the earlier layout (records/<checkpoint>/<task>/<shard>.parquet) too. Raises
    InputError if there is none."""
    store = RecordStore(run_dir)
    cells = sorted(Cells(run_dir), key=lambda cell: cell.name)
    for folder in sorted(store.root.glob("*/*/")) if not cells else ():
        name, task = folder.parts[-2:]
        cells.append(Cell(checkpoint=name, task=task, key=f"{name}/{task}"))
    found = {cell: parts for cell in cells if (parts := store.parts(cell.key))}
    if not found and any(store.every_part()):
        raise InputError(
            f"{run_dir / 'records'}: keys.json names none of its parts: the run's"
            " command does so again"
        )
    if not found:
        raise InputError(
            f"{run_dir / 'records'}: no .parquet part: nothing has been evaluated into"
            " this run yet"
        )
    return found


def read_records(
    cell: Cell, parts: Sequence[Path], names: Sequence[str] = schema.READ_RECORDS
) -> pd.DataFrame:
    """The records of a cell under its names, each once: of several, the last part's
    counts, as the engine may have failed before. `attrs["repeated"]`: whether answers
    stand twice. Raises InputError for an invalid part (`read_part`)."""
    tables = [read_part(path, names, schema.RECORD_COLUMNS) for path in parts]
    own = {**cell.origin, "task": cell.task}
    weights = "weights_digest"
    for path, table in zip(parts, tables, strict=True):
        if weights in own and set(table[weights].unique().to_pylist()) - {own[weights]}:
            raise InputError(
                f"{path}: has records of other weights than {cell.checkpoint}: remove"
                " it, and the run's command makes them again"
            )
    table = pa.concat_tables(tables, promote_options="permissive")
    for name in own.keys() & {*names}:
        kind = schema.RECORDS.field(name)
        column = pa.repeat(pa.scalar(own[name], kind.type), table.num_rows)
        table = table.set_column(table.schema.get_field_index(name), kind, column)
    frame: pd.DataFrame = table.to_pandas()
    failed = unanswered(table)
    answers = table.filter(pc.invert(failed)).select([*_RECORD])
    distinct = answers.group_by([*_RECORD]).aggregate([]).num_rows
    repeated = distinct < answers.num_rows
    if repeated or pc.any(failed).as_py():
        part = np.repeat(range(len(tables)), [each.num_rows for each in tables])
        drawn = [frame[name] for name in ("language", "item_id", *_DRAWN)]
        last = pd.Series(part).groupby(drawn).transform("max").to_numpy() == part
        frame = frame[last].reset_index(drop=True)
    frame.attrs["repeated"] = repeated
    return frame


def read_items(run_dir: Path) -> pd.DataFrame | None:
    """The items of every task; None for a run without items."""
    return read_all(run_dir / "items", "*", schema.READ_ITEMS, schema.ITEM_COLUMNS)


class Asked:
    """The items that the last call asked: RUN/items, and the seeds in run.json, under
    which it drew. Records of others stay in the run, and out of its tables."""

    def __init__(self, items: pd.DataFrame | None, run: Document | None = None) -> None:
        self._seeds = mapping_at(run, "seeds")
        self._keys: dict[str, pd.MultiIndex] = {}
        if items is not None:
            for task, rows in items.groupby("task"):
                self._keys[str(task)] = _keys(rows)

    def only(self, records: pd.DataFrame) -> pd.DataFrame:
        """The records of one checkpoint and task that belong to such items and seeds;
        all, if it has none."""
        asked = np.ones(len(records), dtype=bool)
        task, checkpoint = "", ""
        if len(records):
            checkpoint, task = map(str, records[["checkpoint", "task"]].iloc[0])
        if task in self._keys:
            asked &= _keys(records).isin(self._keys[task])
        if seeds := mapping_at(self._seeds, checkpoint).get(task):
            asked &= records["seed"].isin(seeds).to_numpy()
        return records if asked.all() else records[asked].reset_index(drop=True)


def _keys(rows: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows[["language", "item_id"]].astype(str))


def read_verdicts(run_dir: Path) -> pd.DataFrame | None:
    """The verdicts of all matcher models; None for a run without any."""
    return read_all(
        run_dir / "verdicts", "*/*/*", schema.READ_VERDICTS, schema.VERDICT_COLUMNS
    )


def read_controls(run_dir: Path) -> pd.DataFrame | None:
    """Their verdicts on control pairs; None for a run without any."""
    return read_all(
        run_dir / "verdicts", "*/controls", schema.READ_VERDICTS, schema.VERDICT_COLUMNS
    )


def read_part(
    path: Path, names: Sequence[str], columns: Mapping[str, schema.Stored]
) -> pa.Table:
    """The columns `names` of one Parquet file; `columns` defines the allowed content
    of each.

    Wider types of the same kind are accepted: other programs write int64 for int32,
    and pandas floats for integers with nulls. Raises InputError, naming file and
    column, for an unreadable file, a missing column, another type or a value that is
    not allowed (null, an unknown status)."""
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        present = file.schema_arrow.names
        absent = [name for name in names if name not in present]
        for name in absent:
            if not columns[name].meaning.late:
                raise InputError(f"{path}: has no column {name!r}")
        table = file.read(columns=list(names), use_threads=False)
        # Arrow believes a count that one flipped bit makes smaller
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        if len(table) != sum(group.column(0).num_values for group in groups):
            raise InputError(f"{path}: its footer counts fewer rows than it has")
        for name in absent:
            table = table.append_column(name, pa.nulls(len(table)))
        table = table.select(list(names))
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise InputError(
            f"{path}: cannot be read as Parquet: {one_line(error)}; the command that"
            " wrote it makes it again"
        ) from error
    for name in names:
        _check(table[name], columns[name], f"{path}: column {name!r}")
    return table


def damage_of(
    path: Path,
    columns: Mapping[str, schema.Stored] = schema.RECORD_COLUMNS,
    needed: Collection[str] = _NEEDED,
    take: Callable[[pa.Table], object] = id,
) -> str | None:
    """Why a part cannot be read, in one line; None for a sound part, which `take`
    gets. By default, it is a part of records.

    A sound part is whole, its columns have the right types, and the `needed` ones
    are present. Raises InputError if the system cannot read the file, as the part
    itself may be sound."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.schema_arrow
            for name, column in columns.items():
                if name in found.names:
                    if not _fits(found.field(name).type, column.arrow):
                        return (
                            f"column {name!r} has type {found.field(name).type}, not"
                            f" {column.arrow}"
                        )
                elif name in needed:
                    return f"has no column {name!r}"
            table = file.read(use_threads=False)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise InputError(
                f"{path}: cannot be read: {os.strerror(error.errno)}"
            ) from error
        return one_line(error)
    take(table)
    return None


def damaged(store: RecordStore) -> dict[Path, str]:
    """Every damaged part and why. Raises InputError.

    Most are told by their checksums: to decode 400 items takes five times as long."""
    parts = [*store.every_part()]

    def reason(path: Path) -> str | None:
        whole = is_as_written(path)
        if whole:
            store.content(path)
            return None
        why = damage_of(path, take=partial(store.note, path))
        return OTHER_BYTES if why is None and whole is False else why

    with ThreadPoolExecutor(_READERS) as readers:
        reasons = list(readers.map(reason, parts))
    found = zip(parts, reasons, strict=True)
    return {path: reason for path, reason in found if reason is not None}


def read_all(
    folder: Path,
    names_of_files: str,
    names: tuple[str, ...],
    columns: Mapping[str, schema.Stored],
) -> pd.DataFrame | None:
    """The columns `names` of the Parquet files in a folder, which have names like
    `*/*`; None without any."""
    paths = sorted(folder.glob(f"{names_of_files}.parquet"))
    if not paths:
        return None
    tables = [read_part(path, names, columns) for path in paths]
    frame: pd.DataFrame = pa.concat_tables(
        tables, promote_options="permissive"
    ).to_pandas()
    return frame


def _check(found: pa.ChunkedArray, wanted: schema.Stored, place: str) -> None:
    """Raises InputError for a column that contradicts the schema."""
    if not _fits(found.type, wanted.arrow):
        raise InputError(f"{place} has type {found.type}, not {wanted.arrow}")
    if found.null_count and not wanted.nullable:
        raise InputError(f"{place} holds null")
    if wanted.arrow.startswith("int"):
        try:
            found.cast(wanted.arrow)
        except pa.ArrowException as error:  # half of a rank, or more than 32 bits
            raise InputError(
                f"{place} does not hold {wanted.arrow}: {one_line(error)}"
            ) from error
    if wanted.values:
        values = set(map(str, found.drop_null().unique().to_pylist()))
        strange = sorted(values.difference(wanted.values))
        if strange:
            raise InputError(
                f"{place} holds {strange[0]!r} (known: {', '.join(wanted.values)})"
            )


def _fits(found: pa.DataType, wanted: str) -> bool:
    kinds = pa.types
    if kinds.is_null(found):
        return True
    if kinds.is_dictionary(found):
        return _fits(found.value_type, wanted)
    if wanted.startswith("list<"):
        return (kinds.is_list(found) or kinds.is_large_list(found)) and _fits(
            found.value_type, wanted[5:-1]
        )
    if wanted == "string":
        return bool(kinds.is_string(found) or kinds.is_large_string(found))
    if wanted == "bool":
        return bool(kinds.is_boolean(found))
    return bool(kinds.is_integer(found) or kinds.is_floating(found))
