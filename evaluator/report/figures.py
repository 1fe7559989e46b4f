"""Draws the figures that tables describe (`evaluator.metrics.table`), as inline SVG."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain

import pandas as pd

from evaluator.metrics.inputs import rows_where
from evaluator.metrics.items import ALL, MEAN
from evaluator.metrics.table import (
    Axis,
    Bars,
    Dots,
    Heat,
    Panel,
    Scatter,
    Series,
    Table,
    amount,
)
from evaluator.report import drawing
from evaluator.report.drawing import LINE, SHARES, SMALL, WIDTH, Entry, Plot, Point

_TOP = 30  # above scatters that stand below others, for titles
_BESIDE = 12  # between a panel and a text
_EDGE = 24  # right of the last panel, for half of a tick
_BETWEEN = 48  # two panels, beside the text between them
_LEAST = 90  # the width of a panel; beyond it the figure is wider
_END = 170  # the most room for a text at a row's end
_SCATTER_HEIGHT = 200
_SCATTER_LEFT = 62  # of each panel, for its ticks
_SCATTERS = 4  # side by side
_TITLE = 200  # the most room for the title of one
Numbers = list[float | None]
Rowed = Dots | Bars | Heat
Drawn = list[tuple[Series, list[Point]]]


def draw_each(table: Table, frame: pd.DataFrame) -> list[str]:
    """The figures of a table as inline SVG: one, or one for each part that the table
    keeps `apart`; none without a value."""
    parts = [frame][: len(frame)]
    if table.apart:
        parts = [part for _, part in frame.groupby(list(table.apart), sort=False)]
    figures = []
    for number, part in enumerate(parts):
        name = f"{table.name.replace('_', '-')}-{number}"
        title = f"Figure of table {table.name}"
        figures.append(draw_panels(table.figure, table.plotted(part), name, title))
    return [*filter(None, figures)]


def draw_panels(
    figure: Sequence[Panel], frame: pd.DataFrame, name: str, title: str
) -> str | None:
    """Panels as inline SVG; None without a value. `title` describes the figure to a
    screen reader."""
    if "language" not in frame:
        frame = frame.assign(language=ALL)
    rows = _Rows(frame)
    shown = [panel for panel in figure if _has_values(panel, frame)]
    scatters = [panel for panel in shown if isinstance(panel, Scatter)]
    others = [panel for panel in shown if not isinstance(panel, Scatter)]
    if scatters:
        return _scatters(scatters, rows, title)
    if others:
        return _side_by_side(others, rows, f"figure-{name}", title)
    return None


def _side_by_side(panels: Sequence[Rowed], rows: "_Rows", name: str, title: str) -> str:
    """Panels that share their rows, with a legend of each with several series or
    parts, unless the legends before have all of its names."""
    drawn = [_drawn(panel, rows) for panel in panels]
    ends = [_ends(*each, rows) for each in zip(panels, drawn, strict=True)]
    rooms = [min(_END, max(map(drawing.width_of, each))) + _BETWEEN for each in ends]
    room = _room(rows.labels)
    left = min(room, max(map(drawing.width_of, rows.labels))) + _BESIDE
    free = WIDTH - left - sum(rooms) + _BETWEEN - _EDGE
    unit = max(free, _LEAST * len(panels)) / sum(panel.width for panel in panels)
    height = drawing.ROW * len(rows.keys)
    plots: list[Plot] = []
    legends: list[tuple[Plot, list[Entry]]] = []
    for number, panel in enumerate(panels):
        plot = Plot(left, 0, unit * panel.width, height, f"{name}-{number}")
        plots.append(plot)
        plot.title(_written(panel.title, rows.frame), plot.width + rooms[number])
        if isinstance(panel, Dots):
            _dots(plot, panel, drawn[number])
        elif isinstance(panel, Bars):
            _bars(plot, panel, rows)
        else:
            _heat(plot, panel, rows)
        plot.name_rows(plot.right + 10, ends[number], size=SMALL, room=_END)
        told = [entry.label for _, entries in legends for entry in entries]
        entries = _entries(panel, drawn[number])
        if any(entry.label not in told for entry in entries):
            legends.append((plot, entries))
        left += plot.width + rooms[number]
    first = plots[0]
    look = {"text_anchor": "end", "room": room}
    first.name_rows(first.left - _BESIDE, rows.labels, colour="ink", **look)
    width = right = left - _BETWEEN + _EDGE
    for plot, entries in reversed(legends):
        plot.legend(entries, right)
        right = plot.left
    return drawing.svg(plots, title, width)


def _room(labels: Sequence[str]) -> float:
    """The room of row labels, of which long ones are shortened, but stay apart."""
    for room in (250, 500):
        if len({drawing.shortened(label, room) for label in labels}) == len(labels):
            return room
    return math.inf


def _entries(panel: Rowed, drawn: Drawn) -> list[Entry]:
    """The names in a panel's legend: those with a value; none of a single series."""
    if isinstance(panel, Bars):
        return [Entry(*part, hatch) for hatch, part in enumerate(panel.parts.values())]
    entries = []
    for series, points in drawn:
        if series.label and points and len(drawn) > 1:
            entries.append(Entry(series.label, series.colour, hollow=series.hollow))
    return entries


def _has_values(panel: Panel, frame: pd.DataFrame) -> bool:
    if isinstance(panel, Scatter):
        return len(_drawable(panel, frame)) > 0
    if isinstance(panel, Heat):
        # a single language is what stands beside it
        return len(_languages(panel, frame)) > 1
    if isinstance(panel, Bars):
        columns = [(column, panel.where) for column in panel.parts]
    else:
        columns = [(each.column, each.where) for each in panel.series_of(frame)]
    return any(
        rows_where(frame, {"language": ALL, **where})[column].notna().any()
        for column, where in columns
    )


def _languages(panel: Heat, frame: pd.DataFrame) -> list[str]:
    """Those with a value."""
    rows = rows_where(frame, panel.where)
    return sorted({*rows["language"][rows[panel.column].notna()]} - {ALL, MEAN})


def _drawable(panel: Scatter, frame: pd.DataFrame) -> pd.DataFrame:
    finite = frame[panel.y].astype(float).abs() < math.inf
    return frame[frame[panel.x].notna() & finite]


def _written(title: str, frame: pd.DataFrame) -> str:
    """A title, with each {column} replaced by the column's first value."""

    def first(match: re.Match[str]) -> str:
        if match[1] not in frame:
            return match[0]
        return str(next(iter(frame[match[1]].dropna()), ""))

    return re.sub(r"\{(\w+)\}", first, title)


class _Rows:
    """The checkpoints of a frame in display order, with lookups of one value per
    checkpoint."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        names = frame[["task", "checkpoint"]].drop_duplicates()
        self.keys = list(names.itertuples(index=False, name=None))
        self._several = frame["task"].nunique() > 1
        self.labels = [self.label(*key) for key in self.keys]

    def label(self, task: str, checkpoint: str) -> str:
        return f"{checkpoint} · {task}" if self._several else checkpoint

    def values(self, column: str, where: Mapping[str, str]) -> Numbers:
        """None where there is no value, and of a column that the frame lacks."""
        rows = rows_where(self.frame, {"language": ALL, **where})
        keys = zip(rows["task"], rows["checkpoint"], strict=True)
        known = dict(zip(keys, rows.get(column, ()), strict=False))
        found = map(known.get, self.keys)
        return [None if pd.isna(value) else float(value) for value in found]


def _drawn(panel: Rowed, rows: _Rows) -> Drawn:
    """The series of a panel of dots, and where they have values."""
    if not isinstance(panel, Dots):
        return []
    shown, drawn = drawing.AS_TEXT.get(panel.axis, amount), []
    for series in panel.series_of(rows.frame):
        values, lows, highs = (
            rows.values(series.column + end, series.where)
            for end in ("", "_low", "_high")
        )
        points = []
        for row, (value, low, high) in enumerate(zip(values, lows, highs, strict=True)):
            if value is None:
                continue
            label = f"{series.label}: {shown(value)}".removeprefix(": ")
            if math.isinf(value):
                low = None  # it has no interval
            if low is not None and high is not None:
                label += f" ({shown(low)} to {shown(high)})"
            points.append(Point(row, value, low, high, label))
        drawn.append((series, points))
    return drawn


def _ends(panel: Rowed, drawn: Drawn, rows: _Rows) -> list[str]:
    """What stands right of each row: the values of its filled dots, equal ones once,
    and its note."""
    texts: list[list[str]] = [[] for _ in rows.keys]
    if isinstance(panel, Dots) and panel.text is not None:
        filled = [
            point for series, points in drawn if not series.hollow for point in points
        ]
        for point in sorted(filled, key=lambda point: point.value):
            text = panel.text(point.value)
            if math.isfinite(point.value) and text not in texts[point.row]:
                texts[point.row].append(text)
    if not isinstance(panel, Heat) and panel.note is not None:
        noted = rows.values(panel.note.column, panel.note.where)
        for row, value in zip(texts, noted, strict=True):
            row.append(panel.note.text(value))
    return [" · ".join(row) for row in texts]


def _dots(plot: Plot, panel: Dots, drawn: Drawn) -> None:
    marked = [] if panel.line is None else [panel.line]
    points = [point for _, points in drawn for point in points]
    known = [point.value for point in points if math.isfinite(point.value)]
    if known:  # an axis of infinite values alone has no range
        known += marked
        ends = [end for point in points for end in (point.low, point.high)]
        reach = [end for end in ends if end is not None and math.isfinite(end)]
        plot.across(drawing.scale_of(panel.axis, known, known + reach, plot.most))
        zero = [0.0] if panel.axis in ("points", "changes") else []
        for value in {*zero, *marked}:
            plot.upright(value)
    if panel.linked:
        for row in {point.row for point in points}:
            plot.link(row, [point.value for point in points if point.row == row])
    for series, points in drawn:
        for point in points:
            plot.interval(point, plot.row(point.row + series.shift), series.colour)
    for series, points in drawn:
        for point in points:
            y, hollow = plot.row(point.row + series.shift), series.hollow
            plot.dot(point.value, y, series.colour, hollow=hollow, whole=point.label)


def _bars(plot: Plot, panel: Bars, rows: _Rows) -> None:
    columns = []
    for column in panel.parts:
        values = rows.values(column, panel.where)
        columns.append([v if v and 0 < v < math.inf else 0.0 for v in values])
    ends = [0.0] * len(rows.keys)
    plot.define_hatches()
    sums = map(sum, zip(*columns, strict=True))
    plot.across(SHARES._replace(high=max(1, *sums)), grid=False)
    for shares, part in zip(columns, _entries(panel, []), strict=True):
        for row, share in enumerate(shares):
            if share:
                plot.bar(row, ends[row], share, part)
                ends[row] += share


def _heat(plot: Plot, panel: Heat, rows: _Rows) -> None:
    languages = _languages(panel, rows.frame)
    width = plot.width / len(languages)
    for column, language in enumerate(languages):
        values = rows.values(panel.column, {**panel.where, "language": language})
        for row, value in enumerate(values):
            if value is not None:
                is_negative = panel.negative and value < 0
                colour = panel.negative if is_negative else panel.colour
                # the text on it keeps a contrast of 4.5 in both themes
                opacity = 0.08 + 0.4 * min(max(panel.strength(value), 0), 1)
                cell = Entry(language, colour, opacity)
                plot.tile(row, column * width, width, panel.text(value), cell)
    plot.name_columns(languages)


def _scatters(panels: Sequence[Scatter], rows: _Rows, title: str) -> str:
    """A panel for each scatter, or for each checkpoint and task of one scatter."""
    parts, first = _scatter_parts(panels, rows), panels[0]
    slot = WIDTH / min(len(parts), _SCATTERS)
    plots: list[Plot] = []
    top = 0.0
    for place, (panel, label, part) in enumerate(parts):
        column = place % _SCATTERS
        if plots and not column:
            top = max(plot.foot for plot in plots) + _TOP
        width = slot - _SCATTER_LEFT - _EDGE
        plot = Plot(slot * column + _SCATTER_LEFT, top, width, _SCATTER_HEIGHT)
        plot.title(label, slot)
        alike = [rest[other.y] for other, _, rest in parts if other.axis == panel.axis]
        heights = [0.0, *chain(*alike)]
        plot.upwards(drawing.scale_of(panel.axis, heights, heights))
        _scatter(plot, panel, part, rows)
        x, y = plot.left + width / 2, top + _SCATTER_HEIGHT / 2
        below = _written(panel.x_title, part)
        plot.write(x, plot.bottom + 32, below, text_anchor="middle")
        if not column:
            plot.write_upwards(plot.left - 50, y, panel.y_title, text_anchor="middle")
        plots.append(plot)
    if any(first.labels) and rows.frame[first.hollow].any():
        filled, hollow = (Entry(label, first.colour) for label in first.labels)
        plots[0].foot = max(plot.foot for plot in plots) + 10
        plots[0].legend([filled, hollow._replace(hollow=True)], WIDTH)
    return drawing.svg(plots, title)


def _scatter_parts(
    panels: Sequence[Scatter], rows: _Rows
) -> list[tuple[Scatter, str, pd.DataFrame]]:
    """Each panel with its title and its rows."""
    frame, first, parts = rows.frame, panels[0], []
    if not first.each:
        for panel in panels:
            title = _written(panel.title, frame)
            parts.append((panel, title, _drawable(panel, frame)))
        return parts
    groups = _drawable(first, frame).groupby(["task", "checkpoint"], sort=False)
    for key, part in groups:
        title = drawing.shortened(rows.label(*map(str, key)), _TITLE)
        parts.append((first, title, part))
    return parts


def _scatter(plot: Plot, panel: Scatter, part: pd.DataFrame, rows: _Rows) -> None:
    values = [float(x) for x in part[panel.x] if math.isfinite(x)] or [0.0, 1.0]
    axis: Axis | None = "amounts" if panel.log else None
    plot.across(drawing.scale_of(axis, values, values, plot.most))
    numbers: dict[tuple[float, float], int] = {}
    names: dict[str, None] = {}
    for row in part.to_dict("records"):
        value, y, name = row[panel.x], plot.y(row[panel.y]), str(row[panel.name])
        if not panel.each:
            name = rows.label(row["task"], name)
        hollow, at = bool(row[panel.hollow]), (plot.x(value), y)
        plot.dot(value, y, panel.colour, hollow=hollow, whole=name)
        if at not in numbers:
            numbers[at] = len(numbers) + 1
            plot.write(at[0] + 7, y, str(numbers[at]), size=SMALL)
        names[f"{numbers[at]} {name}"] = None
    plot.foot += LINE
    plot.legend(map(Entry, names), plot.right)
