"""A table of the report as one object: its name and question, its columns, how it is
computed, and its figure.

    TABLE = Table(name="rank", title="Where is it?", reading="...", needs="the probe
    rank", columns=..., compute=...)
    TABLE.rows(inputs)          # the numbers
    TABLE.fill(inputs)          # the numbers, with notes on missing parts

Tables registered in `evaluator.metrics.tables` are computed, written as CSV and
shown on the page.

A figure is data too: its panels, and in each panel the kind of mark, the columns,
colours and axis.

    open = Series("open_accuracy", "greedy", "open") figure=(Dots("Accuracy",
    (open,)), Heat("By language", "open_accuracy", "greedy"))

`evaluator.report.figures` draws it: a row for each checkpoint, or scatters alone. A
panel without a value is left out; a figure without panels is not drawn. Colours are names
of the page's style: probes, fates, `muted`, `negative`. Titles may name a column in
braces: its first value is written there."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import pandas as pd
from msgspec.structs import astuple

from evaluator.core.records import PRUNING, Cell
from evaluator.metrics.columns import (
    REASON,
    TEXT,
    WHY,
    Column,
    Row,
    complete_rows,
    names_of,
    rounded,
    typed_frame,
)
from evaluator.metrics.comparable import rounded_activations
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.items import joined_reasons
from evaluator.metrics.measures import correct_for_many
from evaluator.store.schema import NUMBER_TYPES as NUMBERS

# the columns of a row that all of its cells share
_OF_ROW = ("task", "checkpoint", "base", "format", "probe", "language", REASON.name)
# column -> value of the rows; without a language, rows that pool the languages
Where = Mapping[str, str]
# rates: 0 to 100 %; share: around 100 %; points, changes: around 0 (points: in points);
# amounts: factors apart
Axis = Literal["rates", "share", "points", "changes", "amounts"]


def whole_percent(value: float) -> str:
    return rounded(100 * value)


def amount(value: float, _: object = None) -> str:
    """A positive amount in three significant digits, spelled out: 4,120 and not
    4.12e+03, but 1e+20."""
    shown = float(f"{value:.3g}")
    return f"{shown:,.0f}" if 1000 <= shown < 1e12 else f"{shown:g}"


@dataclass(frozen=True)
class Series:
    """A dot for each row from `column`, with whiskers where `column_low` and
    `column_high` exist; `shift` in rows."""

    column: str
    colour: str
    label: str
    where: Where = field(default_factory=dict)
    shift: float = 0.0
    hollow: bool = False


def of_probes(column: str, **where: str) -> tuple[Series, Series]:
    """A series for each probe with an accuracy."""
    return (
        Series(column, "greedy", "said", where | {"probe": "greedy"}),
        Series(column, "choice", "picked", where | {"probe": "choice"}),
    )


@dataclass(frozen=True)
class Note:
    """A text at the end of each row, made from a column's value (None for a missing
    value)."""

    column: str
    text: Callable[[float | None], str]
    where: Where = field(default_factory=dict)


@dataclass(frozen=True)
class Dots:
    """Series in one panel, or a function that makes them from the frame; a thin line
    in each row if `linked`. `line`: a value to mark. `text`: of filled dots, right
    of them."""

    title: str
    series: Sequence[Series] | Callable[[pd.DataFrame], Sequence[Series]]
    axis: Axis = "rates"
    width: float = 1.0
    linked: bool = False
    line: float | None = None
    text: Callable[[float], str] | None = None
    note: Note | None = None

    def series_of(self, frame: pd.DataFrame) -> Sequence[Series]:
        return self.series(frame) if callable(self.series) else self.series


@dataclass(frozen=True)
class Bars:
    """One stacked bar for each row. `parts`: column -> name, colour, opacity."""

    title: str
    parts: Mapping[str, tuple[str, str, float]]
    where: Where = field(default_factory=dict)
    width: float = 1.0
    note: Note | None = None


@dataclass(frozen=True)
class Heat:
    """Rows by languages. `strength`: of a cell's colour, from 0 to 1; `negative`:
    the colour of values below 0."""

    title: str
    column: str
    colour: str
    where: Where = field(default_factory=dict)
    width: float = 1.0
    text: Callable[[float], str] = whole_percent
    strength: Callable[[float], float] = abs
    negative: str = ""


@dataclass(frozen=True)
class Scatter:
    """`y` over `x`: a dot for each row of the frame, with its `name`, hollow if column
    `hollow` is true. `each`: a panel for each checkpoint and task. `labels` name filled
    and hollow dots in the legend.
    """

    title: str
    x: str
    y: str
    colour: str
    name: str
    hollow: str
    x_title: str
    y_title: str = ""
    axis: Literal["rates", "points", "changes"] = "rates"
    log: bool = False
    each: bool = False
    labels: tuple[str, str] = ("", "")


Panel = Dots | Bars | Heat | Scatter


class Holm(NamedTuple):
    """Column `adjusted` is Holm's correction of column `p` over the checkpoints: the
    rows that agree in all of `family`. A comparison that could not differ
    (`Inputs.could_differ`) is not in the family, and has no `adjusted`.
    """

    family: tuple[str, ...]
    p: str = "mcnemar_p"
    adjusted: str = "holm_p"


class Lack(NamedTuple):
    """A part of a table that a run may lack: the rows with `value` in `column`, or
    without a value the whole column. `wanted` names what to run to get it. Rows with
    a count of 0 are ignored."""

    column: str
    wanted: str
    value: str | None = None


# of a table with rows of both probes
LACKS = (
    Lack("probe", "the probe greedy", "greedy"),
    Lack("probe", "the probe choice", "choice"),
)


@dataclass(frozen=True, eq=False)
class Table:
    """One table, in one object. Raises ValueError for columns that a table cannot
    have.

    `columns` include `task`, `checkpoint` and `counts`, the number of items of a
    row. `reason` (why a number is null) is the last one, unless it is among them.
    `compute` yields the rows as dictionaries; missing values become null. `title` is
    a question, `reading` how to read the answer. `needs` names the probes and
    formats that fill the table.

    - `drawn`: the table compares beams or samples, so base and checkpoint must have
      drawn them alike.
    - `page`: picks the rows for the page, because a table may have thousands. The
      CSV has all rows.
    - `plotted`: picks the rows that are drawn in `figure`, and may rename their
      checkpoints.
    - `corrections` are computed over all rows, after the rows.
    - `apart`: a figure for each combination of values of these columns; without a
      value there, a row is not drawn."""

    name: str
    title: str
    reading: str
    needs: str
    columns: tuple[Column, ...]
    compute: Callable[[Inputs], Iterable[Row]]
    figure: tuple[Panel, ...] = ()
    plotted: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
    lacks: tuple[Lack, ...] = ()
    counts: str = "n"
    drawn: bool = False
    page: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    corrections: tuple[Holm, ...] = ()
    apart: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = names_of(self.columns)
        if REASON.name not in names:
            object.__setattr__(self, "columns", (*self.columns, REASON))
        missing = [
            name for name in ("task", "checkpoint", self.counts) if name not in names
        ]
        if missing or len(set(names)) < len(names):
            wrong = (
                f"has no column {', '.join(missing)}"
                if missing
                else "names a column twice"
            )
            raise ValueError(f"table {self.name!r} {wrong}")

    def column(self, name: str) -> Column:
        """The column of this name. Raises KeyError for an unknown name."""
        return {column.name: column for column in self.columns}[name]

    def rows(self, inputs: Inputs) -> list[Row]:
        """The numbers: exactly the declared columns, None where a value is missing."""
        labelled = (self._labelled(row, inputs) for row in self.compute(inputs))
        rows = complete_rows(self.columns, labelled)
        for family, p, adjusted in self.corrections:
            tested = []
            for row in rows:
                key = row["task"], row["checkpoint"], row["base"]
                if row[p] is not None and inputs.could_differ(*key):
                    tested.append(row)
            correct_for_many(tested, family, p, adjusted)
        return rows

    def _labelled(self, row: Row, inputs: Inputs) -> Row:
        """A row with its reasons: it compares with a base that was evaluated otherwise,
        or has quantised activations; a number has no interval."""
        notes: list[str | None] = []
        if row.get("base") is not None:
            reasons = inputs.incomparable_drawn if self.drawn else inputs.incomparable
            key = str(row.get("task")), str(row.get("checkpoint"))
            notes = [reasons.get(key), rounded_activations(row.get("pattern"))]
        bare = [why for name, why in row.items() if name.endswith(WHY)]
        if any(notes) or bare:
            note = joined_reasons(*notes)
            row["reason"] = joined_reasons(note, row.get("reason"), *bare)
        return row

    def fill(self, inputs: Inputs) -> "FilledTable":
        rows = self.rows(inputs)
        note, lacks = "", ""
        reasons = dict.fromkeys(row["reason"] for row in rows if row["reason"])
        counted = [row for row in rows if (row[self.counts] or 0) > 0]
        if counted:
            lacks = self._lacking(rows, counted, reasons)
        elif rows:
            note = (
                f"Nothing could be computed: {'; '.join(reasons)}. It needs"
                f" {self.needs}."
            )
        else:
            note = f"No rows: it needs {self.needs}."
        return FilledTable(self, rows, note, lacks)

    def _lacking(
        self, rows: list[Row], counted: list[Row], reasons: Iterable[str]
    ) -> str:
        """What to run for the missing parts of the table; empty if none is missing."""
        wanted = []
        for column, what, value in self.lacks:
            if value is None:
                given = any(row[column] is not None for row in rows)
            else:
                given = any(str(row[column]) == value for row in counted)
            if not given:
                wanted.append(what)
        for reason in "; ".join(reasons).split("; "):
            if reason.startswith("needs "):
                wanted.append(reason.removeprefix("needs "))
        return f"Not in this run: {'; '.join(dict.fromkeys(wanted))}." if wanted else ""


@dataclass(frozen=True, eq=False)
class FilledTable:
    """A table's numbers in one run. `note` says what to run for any, `lacks` for
    missing parts; else empty."""

    table: Table
    rows: list[Row]
    note: str
    lacks: str = ""
    failed: bool = False  # `note` gives the error

    @cached_property
    def frame(self) -> pd.DataFrame:
        return typed_frame(self.table.columns, self.rows)

    def told(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Rows as CSV and page show them, without the columns of the figure alone."""
        drawn = names_of(column for column in self.table.columns if column.figure_only)
        if not drawn:
            return frame
        return frame.drop(columns=drawn).drop_duplicates(ignore_index=True)

    @property
    def cells(self) -> Iterator[Cell]:
        """Its numbers; a missing one only with its reason."""
        shown = [column for column in self.table.columns if not column.figure_only]
        tests = {column.p for column in shown}
        left_out = {*_OF_ROW, *PRUNING, *tests}
        own = [column for column in shown if column.name not in left_out]
        names = [column.name for column in shown]
        for row in self.rows:
            of_row: Row = {}
            for name in _OF_ROW:
                of_row[name] = row[name] if name in names else None
            texts = [row[column.name] for column in own if column.kind is TEXT]
            group = ", ".join(map(str, filter(None, texts))) or None
            whys = {why for name, why in row.items() if name.endswith(WHY)}
            told = (of_row.pop(REASON.name) or "").split("; ")
            told = [part for part in told if part not in whys]
            for column in own:
                value, name = row[column.name], column.name
                reason = joined_reasons(row.get(name + WHY), *told)
                if column.kind.number and (reason or value is not None):
                    yield Cell(
                        table=self.table.name,
                        **of_row,
                        group=group,
                        measure=name,
                        value=None if value is None else float(value),
                        low=row.get(f"{name}_low"),
                        high=row.get(f"{name}_high"),
                        n=row.get(column.n, row[self.table.counts]),
                        p=row.get(column.p),
                        reason=reason,
                    )

    @cached_property
    def shown(self) -> pd.DataFrame:
        if self.table.page is None or self.frame.empty:
            return self.frame
        return self.table.page(self.frame)


def numbers_of(tables: Iterable[FilledTable]) -> pd.DataFrame:
    """Every number of some tables: the rows of RUN/tables/numbers.parquet."""
    cells = dict.fromkeys(cell for table in tables for cell in table.cells)
    return pd.DataFrame([*map(astuple, cells)], columns=[*NUMBERS]).astype(NUMBERS)
