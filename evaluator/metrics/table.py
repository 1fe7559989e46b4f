"""A table of the report as one object: its name and question, its columns, and how it is computed.

    TABLE = Table(name="rank", title="Where is it?", reading="...", needs="the probe rank", columns=..., compute=...)
    TABLE.frame(inputs)         # the numbers
    TABLE.fill(inputs)          # the numbers, with notes on missing parts

Tables registered in `evaluator.metrics.tables` are computed, written as CSV and shown on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluator.metrics.columns import Column, Row, names_of, typed_frame
from evaluator.metrics.comparability import rounded_activations
from evaluator.metrics.counting import joined_reasons
from evaluator.metrics.figure import Figure
from evaluator.metrics.inputs import Inputs
from evaluator.metrics.intervals import Floats, holm
from evaluator.metrics.measures import WHY

_EVERY = ("task", "checkpoint", "reason")


@dataclass(frozen=True)
class Holm:
    """Column `adjusted` is Holm's correction of column `p` over the checkpoints: the rows that agree in all of
    `family`. A comparison that could not differ (`Inputs.could_differ`) is not in the family, and has no `adjusted`."""

    family: tuple[str, ...]
    p: str = "mcnemar_p"
    adjusted: str = "holm_p"

    def corrected(self, frame: pd.DataFrame, tested: npt.NDArray[np.bool_]) -> Floats:
        """One number for each row, NaN where it has no p or is not tested."""
        found = np.full(len(frame), np.nan)
        members = frame[frame[self.p].notna() & tested]
        for rows in members.groupby(list(self.family), sort=False, dropna=False).indices.values():
            places = np.flatnonzero(frame[self.p].notna() & tested)[rows]
            found[places] = holm(frame[self.p].iloc[places].tolist())
        return found


@dataclass(frozen=True)
class Lack:
    """A part of a table that a run may lack: the rows with `value` in `column`, or without a value the whole column.
    `wanted` names what to run to get it."""

    column: str
    wanted: str
    value: str | None = None

    def holds(self, frame: pd.DataFrame, counts: str) -> bool:
        """Whether a frame lacks it. Rows with a count of 0 are ignored."""
        if self.value is None:
            return bool(frame[self.column].isna().all())
        return self.value not in set(frame.loc[frame[counts] > 0, self.column].dropna().astype(str))


@dataclass(frozen=True, eq=False)
class Table:
    """One table, in one object. Raises ValueError for columns that a table cannot have.

    `columns` include `task`, `checkpoint`, `reason` (why a number is null) and `counts`, the number of items of a row.
    `compute` yields the rows as dictionaries; missing values become null. `title` is a question, `reading` how to read
    the answer. `needs` names the probes and formats that fill the table.

    - `drawn`: the table compares beams or samples, so base and checkpoint must have drawn them alike.
    - `silent`: the table applies to few runs. Without rows, it does not report its needs.
    - `page`: picks the rows for the page, because a table may have thousands. The CSV has all rows.
    - `corrections` are computed over all rows, after the rows.
    - `any_of`: if no row has a value in this column, the table has no rows.
    """

    name: str
    title: str
    reading: str
    needs: str
    columns: tuple[Column, ...]
    compute: Callable[[Inputs], Iterable[Row]]
    figure: Figure | None = None
    lacks: tuple[Lack, ...] = ()
    counts: str = "n"
    drawn: bool = False
    silent: bool = False
    page: Callable[[pd.DataFrame], pd.DataFrame] | None = None
    corrections: tuple[Holm, ...] = ()
    any_of: str = ""

    def __post_init__(self) -> None:
        names = names_of(self.columns)
        missing = [name for name in (*_EVERY, self.counts) if name not in names]
        if missing or len(set(names)) < len(names):
            wrong = f"has no column {', '.join(missing)}" if missing else "names a column twice"
            raise ValueError(f"table {self.name!r} {wrong}")

    def column(self, name: str) -> Column:
        """The column of this name. Raises KeyError for an unknown name."""
        return {column.name: column for column in self.columns}[name]

    def frame(self, inputs: Inputs) -> pd.DataFrame:
        """The numbers: exactly the declared columns; counts are nullable integers."""
        found = typed_frame(self.columns, (self._labelled(row, inputs) for row in self.compute(inputs)))
        if self.any_of and not found[self.any_of].notna().any():
            return typed_frame(self.columns, ())
        if self.corrections and len(found):
            names = zip(found["task"], found["checkpoint"], found["base"], strict=True)
            tested = [inputs.could_differ(str(task), str(checkpoint), base) for task, checkpoint, base in names]
            for correction in self.corrections:
                found[correction.adjusted] = correction.corrected(found, np.array(tested))
        return found

    def _labelled(self, row: Row, inputs: Inputs) -> Row:
        """A row with these reasons, if they apply:

        - its checkpoint was evaluated on some items only;
        - it compares with a base that was evaluated otherwise;
        - it compares with a base, and quantised activations have a noise floor;
        - a number has no interval.
        """
        incomparable = inputs.incomparable_drawn if self.drawn else inputs.incomparable
        key = str(row.get("task")), str(row.get("checkpoint"))
        why = None if row.get("base") is None else incomparable.get(key)
        few = inputs.decided_early.get(key)
        rounded = None if row.get("base") is None else rounded_activations(row.get("pattern"))
        bare = [row.pop(name) for name in list(row) if name.endswith(WHY)]
        notes = joined_reasons(few, why, rounded)
        return row | {"reason": joined_reasons(notes, row.get("reason"), *bare)} if notes or bare else row

    def fill(self, inputs: Inputs) -> FilledTable:
        """The numbers, with notes on missing parts."""
        frame = self.frame(inputs)
        note = self._note(frame)
        return FilledTable(self, frame, note, "" if note or frame.empty else self._lacks(frame))

    def _note(self, frame: pd.DataFrame) -> str:
        if frame.empty:
            return "" if self.silent else f"No records for this table: it needs {self.needs}."
        if not frame[self.counts].fillna(0).gt(0).any():
            given = dict.fromkeys(frame["reason"].dropna().astype(str))
            return f"Nothing could be computed: {'; '.join(given)}. It needs {self.needs}."
        return ""

    def _lacks(self, frame: pd.DataFrame) -> str:
        wanted = [lack.wanted for lack in self.lacks if lack.holds(frame, self.counts)]
        reasons = (reason for every in frame["reason"].dropna().unique() for reason in str(every).split("; "))
        wanted += [reason.removeprefix("needs ") for reason in reasons if reason.startswith("needs ")]
        return f"Not in this run: {'; '.join(dict.fromkeys(wanted))}." if wanted else ""


@dataclass(frozen=True, eq=False)
class FilledTable:
    """A table's numbers in one run.

    If nothing could be computed, `note` names what to run. `lacks` names what to run for missing parts. Both are empty
    for a complete table.
    """

    table: Table
    frame: pd.DataFrame
    note: str
    lacks: str = ""
    failed: bool = False  # `note` gives the error

    @property
    def shown(self) -> pd.DataFrame:
        """The rows that the page shows, in its order."""
        return self.frame if self.table.page is None or self.frame.empty else self.table.page(self.frame)
