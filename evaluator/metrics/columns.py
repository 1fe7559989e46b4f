"""The columns of a table: a name, a kind, a heading. CSV files, the page and the
terminal are made from these.

    Column("accuracy", PERCENTAGE, interval=True)      # accuracy, accuracy_low and
                                                       accuracy_high
    typed_frame(columns, rows)                         # exactly these columns; counts
                                                       are nullable integers

A kind formats a value for people. The stored values are plain: a percentage is a share
of 1. A share of fewer than `FEW` items is no meaningful percentage. It reads "3 of 9"
if its column names the column of its total (`of`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from evaluator.core.records import PRUNING

MINUS = "\N{MINUS SIGN}"
MISSING = "\N{EN DASH}"
FEW = 20  # with fewer items, one item is more than 5 percentage points
# tolerance of a requested share: matrices have whole numbers of weights
ROUNDING = 0.001
WHY = "_why"  # suffix of the reason why a number has no interval
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """The format of values of one kind: `text` of a value that is not null, followed
    by a space and `unit`."""

    name: str
    text: Callable[[Any], str]
    unit: str = ""
    number: bool = True  # numbers are right-aligned
    # of the frame's column, if pandas' own choice does not fit
    dtype: str | None = None
    stored: str = ""  # unit of the stored value

    def __call__(self, *names: str, **options: Any) -> "tuple[Column, ...]":
        return tuple(Column(name, self, **options) for name in names)

    def estimates(self, *names: str, **options: Any) -> "tuple[Column, ...]":
        """Columns with intervals."""
        return self(*names, interval=True, **options)

    def shown(self, value: object, *, unit: bool = True) -> str:
        """A value for people; a dash if it is null."""
        if is_null(value):
            return MISSING
        text = self.text(value)
        return f"{text} {self.unit}" if unit and self.unit else text


def is_null(value: Any) -> bool:
    """Whether a single value is missing; `pandas.isna`, which also takes columns, is
    ten times slower."""
    return value is None or value is pd.NA or bool(value != value)


def rounded(value: float, digits: int = 0) -> str:
    """A number for people, halves away from zero as in the page's script. Python's
    formats turn 2.5 into 2. 15 digits count: 37.49999999999999, a sum's, is 37.5."""
    text = f"{float(value):,.{digits}f}"
    if abs(value) < 1e15:  # else nothing to round, or no number
        places = Decimal(1).scaleb(-digits)
        exact = Decimal(f"{float(value):.15g}")
        nearest = exact.quantize(places, ROUND_HALF_UP)
        text = f"{nearest or abs(nearest):,}"  # no -0.0
    return text.replace("-", MINUS)


TEXT = Kind("text", str, number=False)
# a text that tells of a row's items, and does not choose them
WORDS = replace(TEXT, name="words")
FLAG = Kind("flag", lambda value: "yes" if value else "no")
COUNT = Kind("count", lambda value: f"{int(value):,}", dtype="Int64", stored="count")
PERCENTAGE = Kind(
    "percentage",
    lambda value: rounded(100 * float(value), 1),
    unit="%",
    stored="fraction of 1",
)
# a difference of two percentages
POINTS = replace(PERCENTAGE, name="points", unit="pp")
# a setting or a bound from 0 to 1
SHARE = Kind("share", lambda value: f"{float(value):.3g}", stored="fraction of 1")
# a mean from 0 to 1 that is no share of items
SCORE = Kind("score", partial(rounded, digits=3))
# A ratio of two differences, or another signed number around 0.
RATIO = Kind("ratio", lambda value: f"{float(value):+.3f}".replace("-", MINUS))
P_VALUE = Kind(
    "p_value",
    lambda value: (
        f"{float(value):.3f}" if float(value) >= 0.001 else f"{float(value):.0e}"
    ),
)
NATS = Kind("nats", partial(rounded, digits=2), stored="nats")
# Of distributions: often far below 1.
DIVERGENCE = Kind(
    "divergence", lambda value: f"{float(value):.3g}", unit="nats", stored="nats"
)
# a place in the vocabulary, or the median of several
RANK = Kind("rank", partial(rounded, digits=1), stored="rank")
# a positive number: `Column.stored` is its unit
AMOUNT = Kind("amount", partial(rounded, digits=2))
FACTOR = Kind("factor", partial(rounded, digits=3))  # how many times as large


# Part of a stored name -> the word that people read. A compressed checkpoint may be
# quantised.
_READ_AS = {
    "pruned": "compressed",
    "mc_only": "picked only",
    "produced_only": "said only",
    "open": "said",
    "choice": "picked",
}


def worded(name: str) -> str:
    """A stored name as people read it: `mc_only_rate` is "picked only rate"."""
    for stored, word in _READ_AS.items():
        name = name.replace(stored, word)
    return name.replace("_", " ")


@dataclass(frozen=True)
class Column:
    """One column of a table, or one value with its interval. Raises TypeError for a
    column without a kind.

    - `title`: its heading on the page.
    - `short`: its heading on the terminal, which shows only columns that have one.
      `meaning` explains it there.
    - `csv_only`: neither page nor terminal shows it.
    - `figure_only`: only the table's figure reads it. CSV and page show rows that
      differ in nothing else once.
    - `of`: the column that counts the total of a share, or the items of a median rank.
    - `n`, `p`: the columns with the number of its items, if it is not the table's, and
      with its p-value.
    - `stored`: the unit of its stored values, if its kind does not name it.
    - `requested`: the column of the requested value, which is shown beside this one if
      they differ.
    - `interval`: the columns `<name>_low` and `<name>_high` follow.
    """

    name: str
    kind: Kind
    title: str = ""
    interval: bool = False
    short: str = ""
    meaning: str = ""
    csv_only: bool = False
    figure_only: bool = False
    of: str = ""
    n: str = ""
    p: str = ""
    requested: str = ""
    stored: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.kind, Kind):
            raise TypeError(f"column {self.name!r} has no kind")

    @property
    def names(self) -> tuple[str, ...]:
        """Its columns in a frame and in the CSV."""
        if not self.interval:
            return (self.name,)
        return (self.name, f"{self.name}_low", f"{self.name}_high")

    @property
    def heading(self) -> str:
        return self.title or worded(self.name)

    def shown(self, row: Mapping[str, Any], *, narrow: bool = False) -> str:
        """The row's value for people: with its unit, or as a count ("3 of 9") if it
        is a share of few items. `narrow` takes as few characters as possible:
        without a unit, a count as "3/9"."""
        value = row.get(self.name)
        if not is_null(value) and self._is_few(row):
            total, of = row[self.of], "/" if narrow else " of "
            text = f"{round(value * total)}{of}{total}"
            if self.kind is RANK:
                text = f"{self.kind.shown(value)} ({total})"
        else:
            text = self.kind.shown(value, unit=not narrow)
        if narrow or not self.missed(row):
            return text
        return f"{text} (requested {self.kind.shown(row[self.requested])})"

    def _is_few(self, row: Mapping[str, Any]) -> bool:
        total: Any = row.get(self.of)
        return not is_null(total) and bool(total < FEW)

    def missed(self, row: Mapping[str, Any]) -> bool:
        """Whether the row's value is not the requested one, within rounding."""
        value: Any = row.get(self.name)
        requested: Any = row.get(self.requested)
        known = not is_null(value) and not is_null(requested)
        return known and bool(abs(value - requested) > ROUNDING)

    def interval_of(self, row: Mapping[str, Any]) -> str:
        """`low to high`; empty without an interval, and of a count (`shown`)."""
        if not self.interval or is_null(row[f"{self.name}_low"]) or self._is_few(row):
            return ""
        ends = [self.kind.shown(row[name], unit=False) for name in self.names[1:]]
        return " to ".join(ends)


_PRUNED = {
    "sparsity": Column("sparsity", SHARE, requested="requested_sparsity"),
    "requested_sparsity": Column("requested_sparsity", SHARE, csv_only=True),
}
# Which checkpoint on which task, and how it was pruned: the first columns of nearly
# every table.
SUBJECT = (
    *TEXT("task", "checkpoint", "base"),
    *(_PRUNED.get(name, Column(name, TEXT)) for name in PRUNING),
)
# the page shows these after a table's own numbers
LAST = ("base", *PRUNING, "excluded", "engine_error", "unpaired", "reason")
LANGUAGE = Column("language", TEXT)
BY_LANGUAGE = (*SUBJECT, LANGUAGE)
REASON = Column("reason", TEXT)
COUNTED = COUNT("n", "excluded", "engine_error")
MCNEMAR = (
    Column("mcnemar_p", P_VALUE, "McNemar p"),
    Column("holm_p", P_VALUE, "Holm p"),
)
DROP = (*POINTS.estimates("drop", n="n_paired", p="mcnemar_p"), *MCNEMAR)


def names_of(columns: Iterable[Column]) -> list[str]:
    return [name for column in columns for name in column.names]


def complete_rows(columns: Sequence[Column], rows: Iterable[Row]) -> list[Row]:
    """Rows with exactly these columns; a missing value or NaN is None. Raises
    ValueError for another column."""
    names = names_of(columns)
    known = {*names}
    complete: list[Row] = []
    unknown: set[str] = set()
    for row in rows:
        strange = row.keys() - known
        unknown.update(name for name in strange if not name.endswith(WHY))
        values = dict.fromkeys(names) | row
        for name, value in row.items():
            if isinstance(value, float) and math.isnan(value):
                values[name] = None
        complete.append(values)
    if unknown:
        raise ValueError(
            f"no column and no kind is declared for {', '.join(sorted(unknown))}"
        )
    return complete


def rows_with(rows: Iterable[Row], equal: Mapping[str, object]) -> list[Row]:
    """The rows that equal `equal` in every column that it names."""
    return [row for row in rows if equal.items() <= row.items()]


def typed_frame(columns: Sequence[Column], rows: Iterable[Row]) -> pd.DataFrame:
    """Rows as a frame with exactly these columns; missing values are null. Raises
    ValueError for another column."""
    rows = complete_rows(columns, rows)
    values: dict[str, pd.Series] = {}
    for column in columns:
        for name in column.names:
            cells = [row[name] for row in rows]
            dtype: Any = object
            if column.kind.number:
                cells = [np.nan if cell is None else cell for cell in cells]
                dtype = column.kind.dtype if name == column.name else None
            values[name] = pd.Series(cells, dtype=dtype)
    return pd.DataFrame(values)


def described(frame: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """The frame with a type for each column. `attrs["units"]` has the units of the
    stored values by column."""
    types: dict[str, str] = {}
    units: dict[str, str] = {}
    for column in columns:
        dtype = column.kind.dtype or "float64"
        if column.kind is FLAG:
            dtype = "boolean"
        if not column.kind.number:
            dtype = "string"
        for name in column.names:
            if name in frame:
                types[name] = dtype if name == column.name else "float64"
                if unit := column.stored or column.kind.stored:
                    units[name] = unit
    found = frame.astype(types)
    found.attrs["units"] = units
    return found


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The rows of a frame as dictionaries: the reverse of `typed_frame`."""
    records = frame.to_dict(orient="records")
    return [{str(name): value for name, value in row.items()} for row in records]


def plain_rows(frame: pd.DataFrame) -> list[Row]:
    """The same for JSON: a missing value is None."""
    return rows_of(frame.astype(object).where(frame.notna(), None))
