"""A table's figure as data: its panels, and in each panel the kind of mark, the columns, colours and axis.

    open = Series("open_accuracy", "greedy", "open")
    Figure((Dots("Accuracy", (open,)), Heat("By language", "open_accuracy", "greedy")))

`evaluator.report.figures` draws it: a row for each checkpoint, or a scatter. A panel without a value is left out;
a figure without panels is not drawn. Colours are names of the page's style: probes, fates, `muted`, `negative`.
Titles may name a column in braces: its first value is written there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from evaluator.metrics.columns import rounded

Where = Mapping[str, str]  # column -> value of the rows; without a language, rows that pool the languages
# rates: 0 to 100 %; share: around 100 %; points and changes: around 0, in points or plain; amounts: factors apart;
# places: whole numbers
Axis = Literal["rates", "share", "points", "changes", "amounts", "places"]


def whole_percent(value: float) -> str:
    return rounded(100 * value)


def amount(value: float, _: object = None) -> str:
    """A positive amount in three significant digits, spelled out: 4,120 and not 4.12e+03."""
    shown = float(f"{value:.3g}")
    return f"{shown:,.0f}" if shown >= 1000 else f"{shown:g}"


@dataclass(frozen=True, eq=False)
class Series:
    """A dot for each row from `column`, with whiskers where `column_low` and `column_high` exist; `shift` in rows."""

    column: str
    colour: str
    label: str
    where: Where = field(default_factory=dict)
    shift: float = 0.0
    hollow: bool = False


@dataclass(frozen=True, eq=False)
class Note:
    """A text at the end of each row, made from a column's value (None for a missing value)."""

    column: str
    text: Callable[[float | None], str]
    where: Where = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Dots:
    """Series in one panel, with a thin line in each row if `linked`. `line` marks a value of the axis. `text` writes
    the values of filled dots above them. `legend` is its number of columns; 0: no legend. `series` may be a function
    that makes them from the frame."""

    title: str
    series: Sequence[Series] | Callable[[pd.DataFrame], Sequence[Series]]
    axis: Axis = "rates"
    width: float = 1.0
    linked: bool = False
    line: float | None = None
    text: Callable[[float], str] | None = None
    legend: int = 0
    note: Note | None = None


@dataclass(frozen=True, eq=False)
class Bars:
    """One stacked bar for each row. `parts`: column -> name, colour, opacity."""

    title: str
    parts: Mapping[str, tuple[str, str, float]]
    where: Where = field(default_factory=dict)
    width: float = 1.0
    legend: int = 0
    note: Note | None = None


@dataclass(frozen=True, eq=False)
class Heat:
    """Rows by languages. `strength` gives the strength of a cell's colour, from 0 to 1; `negative` colours values below
    0."""

    title: str
    column: str
    colour: str
    where: Where = field(default_factory=dict)
    width: float = 1.0
    text: Callable[[float], str] = whole_percent
    strength: Callable[[float], float] = abs
    negative: str = ""


@dataclass(frozen=True, eq=False)
class Scatter:
    """`y` over `x`: a dot for each row of the frame, with its `name`, hollow if column `hollow` is true. `each`: a
    panel for each checkpoint and task. `labels` name filled and hollow dots in the legend."""

    title: str
    x: str
    y: str
    colour: str
    name: str
    hollow: str
    x_title: str
    y_title: str = ""
    axis: Literal["rates", "points"] = "rates"
    log: bool = False
    each: bool = False
    labels: tuple[str, str] = ("", "")


Panel = Dots | Bars | Heat | Scatter


@dataclass(frozen=True, eq=False)
class Figure:
    """`rows` picks the rows of the table that are drawn, and may rename their checkpoints."""

    panels: tuple[Panel, ...]
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda frame: frame
