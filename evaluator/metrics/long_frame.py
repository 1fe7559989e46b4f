"""A table's rows as they are computed, of which a bounded number is in memory: the rest lies in a temporary file.

    rows = filed(columns, computed)             # dictionaries, one after another
    for part in rows.parts(): ...               # frames of at most `HELD_ROWS` rows each
    rows.frame                                  # the same rows in one frame, as `typed_frame` makes it

A run of a few checkpoints has tables of one part, and no file.
"""

from __future__ import annotations

import json
import tempfile
import weakref
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from evaluator.metrics.columns import Column, Row, Values, frame_of, names_of, types_of
from evaluator.metrics.intervals import Floats, holm

HELD_ROWS = 500  # of a table; some 2 MB while they are computed
NAMING = ("checkpoint", "other")  # columns that name a checkpoint of which a row says something


@dataclass(frozen=True)
class Holm:
    """Column `adjusted` is Holm's correction of column `p` over the checkpoints: the rows that agree in all of
    `family`. A row of what could not differ (`Inputs.could_differ`) is no member, and has no `adjusted`."""

    family: tuple[str, ...]
    p: str = "mcnemar_p"
    adjusted: str = "holm_p"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a part lies in the file, its first row, and whom its rows name in each column of NAMING (None: nobody)."""

    start: int
    row: int
    named: Mapping[str, frozenset[str | None]]

    def tells_of(self, checkpoints: frozenset[str | None]) -> bool:
        return all(None in names or names & checkpoints for names in self.named.values())


class LongFrame:
    """The rows of a table, in the order in which they came. The file goes when the object does."""

    def __init__(self, last: pd.DataFrame, stored: _Stored | None = None) -> None:
        self._last = last
        self._stored = stored

    def __len__(self) -> int:
        return len(self._last) + (0 if self._stored is None else self._stored.rows)

    def parts(self) -> Iterator[pd.DataFrame]:
        """All rows, in frames of the same columns and types; one frame at least. Each is read when it is asked for."""
        return self._parts(None)

    def _parts(self, checkpoints: frozenset[str | None] | None) -> Iterator[pd.DataFrame]:
        if self._stored is not None:
            yield from self._stored.parts(checkpoints)
        yield self._last

    @property
    def frame(self) -> pd.DataFrame:
        """All rows at once."""
        return _joined(list(self.parts()))

    def select(self, pick: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
        """What `pick` takes of each part."""
        return _joined([pick(part) for part in self.parts()])

    def of(self, checkpoints: Collection[str]) -> LongFrame:
        """The rows that name no other checkpoints than these."""
        parts = [rows_of_checkpoints(part, checkpoints) for part in self._parts(frozenset(checkpoints))]
        return LongFrame(_joined(parts))


def rows_of_checkpoints(frame: pd.DataFrame, checkpoints: Collection[str]) -> pd.DataFrame:
    """The rows of a frame that name no other checkpoints than these."""
    kept = pd.Series(True, index=frame.index)
    for name in NAMING:
        if name in frame:
            kept &= frame[name].isna() | frame[name].isin(list(checkpoints))
    return frame[kept].reset_index(drop=True)


def filed(
    columns: Sequence[Column],
    rows: Iterable[Row],
    corrections: Sequence[Holm] = (),
    tested: Callable[[Row], bool] = lambda row: True,
) -> LongFrame:
    """Rows with exactly these columns; a value that a row lacks is null. `tested`: whether a row is of the families of
    `corrections`. Raises ValueError for a column of the rows that is not among them: it would be lost."""
    names = names_of(columns)
    values: Values = {name: [] for name in names}
    families = [_Families(each) for each in corrections]
    stored: _Stored | None = None
    unknown: set[str] = set()
    count = 0
    for count, row in enumerate(rows, start=1):
        if len(values[names[0]]) == HELD_ROWS:
            stored = stored or _Stored(columns)
            stored.add(values)
            values = {name: [] for name in names}
        unknown |= row.keys() - values.keys()
        for name, column in values.items():
            column.append(row.get(name, np.nan))
        for family in families if tested(row) else ():
            family.add(count - 1, row)
    if unknown:
        raise ValueError(f"no column and no kind is declared for {', '.join(sorted(unknown))}")
    corrected = {each.correction.adjusted: each.corrected(count) for each in families if count}
    if stored is None:
        return LongFrame(frame_of(columns, values | {name: each.tolist() for name, each in corrected.items()}))
    return LongFrame(stored.finish(values, corrected), stored)


class _Families:
    """The p values that are corrected together."""

    def __init__(self, correction: Holm) -> None:
        self.correction = correction
        self._found: dict[tuple[object, ...], tuple[array[int], array[float]]] = {}

    def add(self, place: int, row: Row) -> None:
        p = row.get(self.correction.p)
        if p is not None:
            family = tuple(row[name] for name in self.correction.family)
            places, values = self._found.setdefault(family, (array("q"), array("d")))
            places.append(place)
            values.append(p)

    def corrected(self, rows: int) -> Floats:
        """One number for each row, NaN where it has no p."""
        found = np.full(rows, np.nan)
        for places, values in self._found.values():
            found[np.asarray(places)] = holm(values)
        return found


class _Stored:
    """Parts in a file, as the values that rows came with: a column's type is known when all have come."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._file = tempfile.TemporaryFile(prefix="resurface-rows-")  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._places: list[_Place] = []
        self._seen: dict[str, dict[tuple[type, bool], object]] = {}  # of each column, a value of each kind
        self._types: Mapping[str, object] = {}
        self._corrected: Mapping[str, Floats] = {}
        self.rows = 0

    def add(self, values: Values) -> None:
        self._see(values)
        named = {
            name: frozenset(each if isinstance(each, str) else None for each in values[name])
            for name in NAMING
            if name in values
        }
        self._places.append(_Place(self._file.tell(), self.rows, named))
        self._file.write(json.dumps(values, default=_plain).encode() + b"\n")
        self.rows += len(next(iter(values.values())))

    def _see(self, values: Values) -> None:
        for name, column in values.items():
            self._seen.setdefault(name, {}).update({(type(each), each != each): each for each in column})

    def finish(self, values: Values, corrected: Mapping[str, Floats]) -> pd.DataFrame:
        """The frame of the last rows, which are not stored."""
        self._see(values)
        self._types = types_of({name: list(seen.values()) for name, seen in self._seen.items()})
        self._types = {**self._types, **dict.fromkeys(corrected, np.dtype(np.float64))}
        self._corrected = corrected
        return self._frame(values, self.rows)

    def parts(self, checkpoints: frozenset[str | None] | None) -> Iterator[pd.DataFrame]:
        """Those that may name these checkpoints, or all."""
        for place in self._places:
            if checkpoints is None or place.tells_of(checkpoints):
                self._file.seek(place.start)
                yield self._frame(json.loads(self._file.readline()), place.row)

    def _frame(self, values: Values, row: int) -> pd.DataFrame:
        end = row + len(next(iter(values.values())))
        corrected = {name: each[row:end].tolist() for name, each in self._corrected.items()}
        return frame_of(self._columns, values | corrected, self._types)


def _plain(value: np.generic) -> object:
    """NumPy's numbers and booleans as Python's; JSON keeps these exactly, NaN too."""
    found: object = value.item()
    return found


def _joined(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
