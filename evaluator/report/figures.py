"""Draws the figures that tables describe (`evaluator.metrics.table`), as inline SVG
or as matplotlib's axes."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from textwrap import wrap
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from evaluator.metrics.inputs import rows_where
from evaluator.metrics.items import ALL, MEAN
from evaluator.metrics.table import Bars, Dots, Heat, Note, Panel, Scatter, Table
from evaluator.report import theme

_SCATTER_ROWS = 7  # the height of a scatter
_TITLE_CHARACTERS = 96  # of all panels, side by side
Numbers = list[float | None]
Axes = Any  # matplotlib is untyped here


def draw_each(table: Table, frame: pd.DataFrame) -> list[str]:
    """The figures of a table as inline SVG: one, or one for each part that the table
    keeps `apart`."""
    figures = []
    for number, part in enumerate(parts_of(table, frame)):
        figure = draw(table, part, f"-{number}" if number else "")
        if figure is not None:
            figures.append(figure)
    return figures


def parts_of(table: Table, frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each figure of a table."""
    if not table.apart:
        return [frame]
    return [part for _, part in frame.groupby(list(table.apart), sort=False)]


def axes_of(table: Table, frame: pd.DataFrame, canvas: theme.Canvas) -> list[Axes]:
    """The panels of one figure (`parts_of`), within `canvas` (`theme.figure`); none
    without a figure or a value."""
    if not table.figure or frame.empty:
        return []
    with mpl.rc_context(theme.STYLE):
        return _painted(table.figure, table.plotted(frame), canvas)


def _painted(
    figure: Sequence[Panel], frame: pd.DataFrame, canvas: theme.Canvas
) -> list[Axes]:
    rows = _Rows(frame)
    shown = [panel for panel in figure if _has_values(panel, frame)]
    scatters = [panel for panel in shown if isinstance(panel, Scatter)]
    others = [panel for panel in shown if not isinstance(panel, Scatter)]
    if scatters:
        return _scatters(scatters, rows, canvas)
    return _side_by_side(others, rows, canvas) if others else []


def draw(table: Table, frame: pd.DataFrame, suffix: str = "") -> str | None:
    """The figure of a table as inline SVG, `suffix` for its name; None if there is
    no figure or no value."""
    if not table.figure or frame.empty:
        return None
    name = f"{table.name.replace('_', '-')}{suffix}"
    title = f"Figure of table {table.name}"
    return draw_panels(table.figure, table.plotted(frame), name, title)


def draw_panels(
    figure: Sequence[Panel], frame: pd.DataFrame, name: str, title: str
) -> str | None:
    """Panels as inline SVG; None without a value. `title` describes the figure to a
    screen reader."""
    with mpl.rc_context(theme.STYLE), warnings.catch_warnings():
        # The browser draws the text with its own fonts. A glyph missing in matplotlib's
        # font only shifts a label.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        panels = _painted(figure, frame, Figure)
        if not panels:
            return None
        return theme.to_svg(panels[0].figure, f"figure-{name}", title)


def _side_by_side(
    shown: Sequence[Dots | Bars | Heat], rows: "_Rows", canvas: theme.Canvas
) -> list[Axes]:
    frame = rows.frame
    panels = theme.figure(len(rows.keys), [panel.width for panel in shown], canvas)
    theme.name_rows(panels[0], rows.labels)
    labels, with_legend = set(), None  # the first panel of several series
    for panel in shown:
        series = panel.series_of(frame) if isinstance(panel, Dots) else []
        for each in series:
            if any(v is not None for v in rows.values(each.column, each.where)):
                labels.add(each.label)
        if isinstance(panel, Bars) or len(series) > 1:
            with_legend = with_legend or panel
    for axes, panel in zip(panels, shown, strict=True):
        if isinstance(panel, Dots):
            _dots(axes, panel, rows, labels)
        elif isinstance(panel, Bars):
            _bars(axes, panel, rows)
        elif isinstance(panel, Heat):
            _heat(axes, panel, rows)
        axes.set_title(_written(panel.title, frame))
        for axis in (axes.xaxis, axes.yaxis):  # of a place for no label, likewise
            axis.set_label_coords(0, 0)
        columns = 4 if panel is with_legend else 0
        if isinstance(panel, Dots):
            columns = panel.legend or columns
        if columns:
            theme.legend(axes, columns=columns)
    return panels


def _has_values(panel: Panel, frame: pd.DataFrame) -> bool:
    if isinstance(panel, Scatter):
        return bool((frame[panel.x].notna() & frame[panel.y].notna()).any())
    if isinstance(panel, Heat):
        apart = rows_where(frame, panel.where)
        apart = apart[apart[panel.column].notna()]
        # a single language is what stands beside it
        return len({*apart["language"]} - {ALL, MEAN}) > 1
    if isinstance(panel, Bars):
        columns = [(column, panel.where) for column in panel.parts]
    else:
        columns = [(each.column, each.where) for each in panel.series_of(frame)]
    return any(
        rows_where(frame, {"language": ALL, **where})[column].notna().any()
        for column, where in columns
    )


def _written(title: str, frame: pd.DataFrame) -> str:
    """A title, with each {column} replaced by the column's first value."""
    for name in frame.columns:
        if f"{{{name}}}" in title:
            title = title.replace(f"{{{name}}}", str(frame[name].dropna().iloc[0]))
    return title


class _Rows:
    """The checkpoints of a frame in display order, with lookups of one value per
    checkpoint."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        names = frame[["task", "checkpoint"]].drop_duplicates()
        self.keys = list(names.itertuples(index=False, name=None))
        self.labels = [self.label(*key) for key in self.keys]

    def label(self, task: str, checkpoint: str) -> str:
        several = self.frame["task"].nunique() > 1
        return f"{checkpoint} · {task}" if several else checkpoint

    def values(self, column: str, where: Mapping[str, str]) -> Numbers:
        rows = rows_where(self.frame, {"language": ALL, **where})
        keys = zip(rows["task"], rows["checkpoint"], strict=True)
        known = {}
        for key, value in zip(keys, rows[column], strict=True):
            known[key] = None if pd.isna(value) else float(value)
        return [known.get(key) for key in self.keys]


def _dots(axes: Axes, panel: Dots, rows: _Rows, labels: Collection[str]) -> None:
    """`labels`: those of the legend, of every series with a value in any panel."""
    drawn = []
    for series in panel.series_of(rows.frame):
        if series.label in labels:
            values = rows.values(series.column, series.where)
            theme.mark_infinite(axes, values, series.colour)
            drawn.append((series, [_finite(value) for value in values]))
    if panel.linked:
        theme.link(axes, *(values for _, values in drawn))
    intervals = []
    for series, values in drawn:
        low, high = f"{series.column}_low", f"{series.column}_high"
        whiskers: list[tuple[float | None, float | None]] = []
        if low in rows.frame:
            lows = rows.values(low, series.where)
            highs = rows.values(high, series.where)
            whiskers = list(zip(lows, highs, strict=True))
        theme.dots(axes, values, series, whiskers)
        intervals.append((series, whiskers))
    known = [value for _, values in drawn for value in values if value is not None]
    axis_values = known if panel.line is None else [panel.line, *known]
    if panel.line is not None:
        axes.axvline(panel.line, color=theme.COLOURS["muted"], linewidth=1)
    if known:  # an axis of infinite values alone has no range
        theme.set_axis(axes, panel.axis, axis_values)
        for series, whiskers in intervals:
            theme.mark_cut(axes, series, whiskers)
    if panel.text is not None:
        full = (values for series, values in drawn if not series.hollow)
        theme.label_values(axes, *full, text=panel.text)
    if panel.note is not None:
        _notes(axes, panel.note, rows, 1.06)


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _bars(axes: Axes, panel: Bars, rows: _Rows) -> None:
    parts = []
    for column, part in panel.parts.items():
        parts.append((rows.values(column, panel.where), *part))
    theme.stacked(axes, parts)
    if panel.note is not None:
        _notes(axes, panel.note, rows, 1.012)
    theme.percent_axis(axes, 0.0, 1.0)


def _notes(axes: Axes, note: Note, rows: _Rows, end: float) -> None:
    look = {"va": "center", "fontsize": 7.8, "color": theme.COLOURS["muted"]}
    for y, value in enumerate(rows.values(note.column, note.where)):
        axes.text(0.0 if value is None else end, y, note.text(value), **look)


def _heat(axes: Axes, panel: Heat, rows: _Rows) -> None:
    languages, cells = sorted(set(rows.frame["language"]) - {ALL, MEAN}), {}
    for language in languages:
        values = rows.values(panel.column, {**panel.where, "language": language})
        for row, value in enumerate(values):
            if value is not None:
                is_negative = panel.negative and value < 0
                colour = panel.negative if is_negative else panel.colour
                cells[row, language] = panel.text(value), panel.strength(value), colour
    theme.heat(axes, languages, cells)


def _scatters(
    panels: Sequence[Scatter], rows: _Rows, canvas: theme.Canvas
) -> list[Axes]:
    """A panel for each scatter, or for each checkpoint and task of one scatter."""
    frame, first = rows.frame, panels[0]
    parts = []
    if first.each:
        for key, label in zip(rows.keys, rows.labels, strict=True):
            same = (frame["task"] == key[0]) & (frame["checkpoint"] == key[1])
            parts.append((first, label, frame[same]))
    else:
        for panel in panels:
            sizes = frame[[panel.x, panel.y]].astype(float).abs()
            finite = frame[(sizes < math.inf).all(axis=1)]
            parts.append((panel, _written(panel.title, frame), finite))
    one_scale = len({panel.axis for panel in panels}) == 1
    widths = [1.0] * len(parts)
    panel_axes = theme.figure(_SCATTER_ROWS, widths, canvas, sharey=one_scale)
    for axes, (panel, _, part) in zip(panel_axes, parts, strict=True):
        _scatter(axes, panel, part)
        low, high = min(0.0, frame[panel.y].min()) - 0.03, frame[panel.y].max() + 0.05
        axes.set_ylim(*((-0.04, 1.04) if panel.axis == "rates" else (low, high)))
    for axes, (_, title, _) in zip(panel_axes, parts, strict=True):
        axes.set_title("\n".join(wrap(title, _TITLE_CHARACTERS // len(parts))))
    panel_axes[0].set_ylabel(first.y_title)
    if any(first.labels) and frame[first.hollow].any():
        theme.legend(panel_axes[0])
    for axes, (panel, _, part) in zip(panel_axes, parts, strict=True):
        names = part[panel.name]
        if not panel.each:
            names = map(theme.shortened, map(rows.label, part["task"], names))
        named = part.assign(text=list(names)).groupby([panel.x, panel.y], sort=False)
        theme.number_points(axes, named["text"].agg(", ".join).to_dict())
    return panel_axes


def _scatter(axes: Axes, panel: Scatter, part: pd.DataFrame) -> None:
    hollow = part[panel.hollow].astype(bool)
    edge, paper = theme.COLOURS[panel.colour], theme.COLOURS["paper"]
    for chosen, face, label in zip(
        (~hollow, hollow), (edge, paper), panel.labels, strict=True
    ):
        dots = part[chosen]
        look = {"s": 30, "facecolor": face, "edgecolor": edge, "zorder": 3}
        axes.scatter(dots[panel.x], dots[panel.y], label=label, **look)
    if panel.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(theme.as_amount)
        axes.xaxis.set_minor_formatter("")
    if panel.axis != "changes":
        shares = theme.as_percent if panel.axis == "rates" else theme.as_points
        axes.yaxis.set_major_formatter(shares)
    axes.grid(axis="y", color=theme.COLOURS["grid"], linewidth=0.7)
    axes.set_xlabel(_written(panel.x_title, part))
    axes.margins(x=0.15 if panel.each else 0.2)
    axes.tick_params(labelleft=True)
