"""The outcomes of one checkpoint on one task after another, of which a bounded number is in memory.

A run may have thousands of these pieces. What tables look at is one of them, or one beside its base's: the first ones
are held as frames, and from `HELD_ROWS` on each lies in a file of a temporary directory until it is looked at.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import feather

from evaluator.core.records import METADATA
from evaluator.metrics.outcomes import KEY, empty_outcomes, outcome_types
from evaluator.probes import PROBES

HELD_ROWS = 20_000  # of outcomes; some 20 MB
Key = TypeVar("Key")
Pair = tuple[str, str]  # checkpoint, task


class Pieces:
    """Filled by `add`, then read. Files go when the object does."""

    def __init__(self, outcomes: pd.DataFrame | None = None, *, held_rows: int = HELD_ROWS) -> None:
        """`held_rows`: as many outcomes stay in memory."""
        self._left = held_rows
        self._pieces: dict[Pair, pd.DataFrame | Path] = {}
        self._folder: Path | None = None
        self._first: list[dict[str, Any]] = []
        self._items: dict[str, set[tuple[str, str]]] = {}
        self._read_by: dict[str, set[str]] = {}
        self._formats: dict[Pair, set[str]] = {}
        if outcomes is not None:
            self.add(outcomes)

    def add(self, outcomes: pd.DataFrame) -> None:
        """Take the outcomes of some checkpoints and tasks; all of a pair at once. Columns as in `outcome_types`."""
        for pair, piece in outcomes.groupby(["checkpoint", "task"], sort=False):
            checkpoint, task = map(str, pair)
            if (checkpoint, task) in self._pieces:
                raise ValueError(f"checkpoint {checkpoint!r}, task {task!r}: a second piece of outcomes")
            self._first.append({name: piece[name].iloc[0] for name in ("checkpoint", "task", *METADATA)})
            self._items.setdefault(task, set()).update(
                zip(piece["language"].astype(str), piece["item_id"].astype(str), strict=True)
            )
            self._formats[checkpoint, task] = set(map(str, piece["format"].unique()))
            asked = {probe.reads for probe in PROBES if piece[f"{probe.name}_status"].notna().any()}
            self._read_by.setdefault(task, set()).update(asked)
            self._pieces[checkpoint, task] = self._kept(plain(piece))

    def _kept(self, piece: pd.DataFrame) -> pd.DataFrame | Path:
        self._left -= len(piece)
        if self._left >= 0:
            return piece
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="resurface-outcomes-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / f"{len(self._pieces)}.arrow"
        columns = {name: pa.array(piece[name].to_numpy()) for name in piece}
        for name, column in columns.items():
            if pa.types.is_string(column.type):
                columns[name] = column.dictionary_encode()
        feather.write_feather(pa.table(columns), str(path), compression="lz4")
        return path

    def __getitem__(self, pair: Pair) -> pd.DataFrame:
        """A piece with plain columns (`plain`), in the order of KEY; empty of what was not asked."""
        piece = self._pieces.get(pair)
        if isinstance(piece, Path):
            return _read(piece)
        return plain(empty_outcomes()) if piece is None else piece

    @property
    def first(self) -> list[dict[str, Any]]:
        """Checkpoint, task and METADATA of the first row of every piece, in the order in which they came."""
        return self._first

    @property
    def formats(self) -> set[str]:
        """Every format that was asked."""
        return set().union(*self._formats.values())

    def formats_of(self, pair: Pair) -> Set[str]:
        """The formats in which one piece was asked."""
        return self._formats.get(pair, set())

    @property
    def asked(self) -> pd.DataFrame:
        """Every item of every task once: task, language, item_id, and `item`, its number within the task."""
        found = [
            (task, *key, number)
            for task, keys in sorted(self._items.items())
            for number, key in enumerate(sorted(keys))
        ]
        texts = ["task", "language", "item_id"]
        return pd.DataFrame(found, columns=[*texts, "item"]).astype(dict.fromkeys(texts, object) | {"item": "int64"})

    @property
    def text_tasks(self) -> frozenset[str]:
        """The tasks of which only probes of texts were asked."""
        return frozenset(task for task, reads in self._read_by.items() if "text" in reads and "items" not in reads)


def plain(outcomes: pd.DataFrame) -> pd.DataFrame:
    """Outcomes in the order of KEY as plain columns: numbers and booleans as floats with NaN for null (many small
    selections of nullable columns are slow), equal texts as one object with None for null."""
    frame = outcomes.sort_values(list(KEY), ignore_index=True)
    columns: dict[str, Any] = {}
    for name, dtype in outcome_types().items():
        if dtype == "string":
            columns[name] = _shared(*pd.factorize(frame[name]))
        else:
            columns[name] = frame[name].to_numpy(dtype="float64", na_value=np.nan)
    return pd.DataFrame(columns)


def _shared(codes: Any, texts: Any) -> pd.Series:
    """The text of each code, None of -1, as objects: equal texts are one."""
    known = np.empty(len(texts) + 1, dtype=object)
    known[: len(texts)] = [str(text) for text in texts]
    known[-1] = None
    return pd.Series(known[codes], dtype=object)


def _read(path: Path) -> pd.DataFrame:
    table = feather.read_table(str(path))
    columns: dict[str, Any] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_dictionary(column.type):
            codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
            columns[name] = _shared(codes, column.dictionary.to_pylist())
        elif pa.types.is_null(column.type):
            columns[name] = _shared(np.full(len(column), -1), [])
        else:
            columns[name] = column.to_numpy(zero_copy_only=False).copy()
    return pd.DataFrame(columns)


class Recent(Mapping[Key, pd.DataFrame], Generic[Key]):
    """Frames that are made where they are looked up; those used last are held, of about so many rows in all."""

    def __init__(self, make: Callable[[Key], pd.DataFrame], rows: int) -> None:
        self._make = make
        self._left = rows
        self._held: OrderedDict[Key, pd.DataFrame] = OrderedDict()

    def __getitem__(self, key: Key) -> pd.DataFrame:
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = self._make(key)
            self._left -= len(found)
            while self._left < 0 and len(self._held) > 1:
                self._left += len(self._held.popitem(last=False)[1])
        self._held.move_to_end(key)
        return found

    def __iter__(self) -> Iterator[Key]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)
