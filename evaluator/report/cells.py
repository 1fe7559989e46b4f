"""A table's frame as strings for the page. A value and its interval share a cell; empty columns are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from evaluator.metrics import TABLES
from evaluator.metrics.columns import COUNT, TEXT, Column, names_of, rows_of
from evaluator.metrics.inputs import ALL, MEAN


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its interval in smaller type, and whether it is a number, which is right-aligned."""

    text: str
    interval: str = ""
    number: bool = True


@dataclass(frozen=True)
class Grid:
    """Headings and rows of cells. `pooled` rows come first; the rows of single languages are separate."""

    headings: tuple[str, ...]
    pooled: tuple[tuple[Cell, ...], ...]
    by_language: tuple[tuple[Cell, ...], ...] = ()


def grid(frame: pd.DataFrame, columns: Sequence[Column]) -> Grid:
    """A whole table without its empty columns; `task` is left out too if there is only one.

    Raises ValueError if a column of the frame is not in `columns`: it has no kind, so it cannot be shown.
    """
    unknown = set(frame) - set(names_of(columns))
    if unknown:
        raise ValueError(f"no kind is declared for {', '.join(sorted(map(str, unknown)))}")
    shown = [column for column in columns if not column.csv_only and frame[column.names[0]].notna().any()]
    if frame["task"].nunique() == 1 and len(shown) > 1:
        shown = [column for column in shown if column.name != "task"]
    headings = tuple(column.heading for column in shown)
    rows = [tuple(_cell(column, row) for column in shown) for row in rows_of(frame)]
    if "language" not in frame:
        return Grid(headings, tuple(rows))
    pooled = frame["language"].isin([ALL, MEAN]).tolist()
    return Grid(
        headings,
        tuple(row for row, keep in zip(rows, pooled, strict=True) if keep),
        tuple(row for row, keep in zip(rows, pooled, strict=True) if not keep),
    )


def published_grid(paper: pd.DataFrame) -> Grid:
    """The paper's numbers next to ours, each in the format of its quantity."""
    rows = []
    for row in rows_of(paper):
        quantity = TABLES[row["table"]].column(row["quantity"])
        words = [str(row["checkpoint"]), str(row["language"]), str(row["cell"]), quantity.heading]
        interval = Column("ours", quantity.kind, interval=True).interval_of(row)
        rows.append(
            (
                *(Cell(word, number=False) for word in words),
                Cell(quantity.kind.shown(row["paper"])),
                Cell(quantity.kind.shown(row["ours"]), interval),
                Cell(COUNT.shown(row["n"])),
                Cell(TEXT.shown(row["source"]), number=False),
            )
        )
    headings = ("checkpoint", "language", "which", "quantity", "paper", "ours", "n", "source")
    keep = [at for at in range(len(headings)) if any(row[at].text for row in rows)]
    return Grid(tuple(headings[at] for at in keep), tuple(tuple(row[at] for at in keep) for row in rows))


def _cell(column: Column, row: Mapping[str, Any]) -> Cell:
    if column.alone:
        return Cell(column.interval_of(row) or column.shown({}))
    return Cell(column.shown(row), column.interval_of(row), column.kind.number)
