"""Reads a run directory back: records one checkpoint and task at a time, items, and run.json."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evaluator.errors import InputError, one_line, parse
from evaluator.store.schema import READ_ITEMS, READ_RECORDS, READ_VERDICTS


def record_parts(run_dir: Path) -> list[list[Path]]:
    """The committed parts, grouped by checkpoint and task. Raises InputError when there is none."""
    paths = sorted(path for path in (run_dir / "records").glob("*/*/*.parquet") if not path.name.startswith("."))
    if not paths:
        raise InputError(f"{run_dir / 'records'}: no .parquet part: nothing has been evaluated into this run yet")
    return [list(group) for _, group in groupby(paths, key=lambda path: path.parent)]


def read_records(paths: list[Path]) -> pd.DataFrame:
    """The records of some parts. Raises InputError for a part that cannot be read or lacks a column."""
    return _frame(paths, READ_RECORDS)


def read_items(run_dir: Path) -> pd.DataFrame | None:
    """The items of every task, or None for a run that has records alone."""
    paths = sorted((run_dir / "items").glob("*.parquet"))
    if not paths:
        return None
    return _frame(paths, READ_ITEMS)


def read_verdicts(run_dir: Path) -> pd.DataFrame | None:
    """What matcher models decided, or None for a run that none has judged."""
    paths = sorted((run_dir / "verdicts").glob("*/*/*.parquet"))
    return _frame(paths, READ_VERDICTS) if paths else None


def read_run(run_dir: Path) -> dict[str, Any]:
    """run.json, empty when there is none. Raises InputError when it is not a JSON object."""
    path = run_dir / "run.json"
    if not path.exists():
        return {}
    run = parse(path.read_bytes(), str(path))
    if not isinstance(run, dict):
        raise InputError(f"{path}: must be a JSON object, is {type(run).__name__}")
    return run


def frames(parts: list[list[Path]]) -> Iterator[pd.DataFrame]:
    """The records of one checkpoint and task after another."""
    for paths in parts:
        frame = read_records(paths)
        if not frame.empty:
            yield frame


def _frame(paths: list[Path], columns: tuple[str, ...]) -> pd.DataFrame:
    tables = [_table(path, columns) for path in paths]
    frame: pd.DataFrame = pa.concat_tables(tables, promote_options="permissive").to_pandas()
    return frame


def _table(path: Path, columns: tuple[str, ...]) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {one_line(error)}") from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}")
    return table.select(list(columns))
