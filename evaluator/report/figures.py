"""Draws the figures that tables describe (`evaluator.metrics.table`), as inline SVG."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from evaluator.metrics.inputs import rows_where
from evaluator.metrics.items import ALL, MEAN
from evaluator.metrics.table import (
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
from evaluator.report.drawing import Bar, Entry, Plot, Point, Scale

_TOP = 30.0  # above the rows, for titles
_AXIS = 40.0  # below them, up to a legend
_BESIDE = 12.0  # between a panel and a text
_BETWEEN = 48.0  # two panels, beside the text between them
_TICK = 60.0  # the room of a tick
_SCATTER_HEIGHT = 200.0
_SCATTER_LEFT = 62.0  # of each panel, for its ticks
Numbers = list[float | None]
Rowed = Dots | Bars | Heat


def draw_each(table: Table, frame: pd.DataFrame) -> list[str]:
    """The figures of a table as inline SVG: one, or one for each part that the table
    keeps `apart`."""
    parts = [frame]
    if table.apart:
        parts = [part for _, part in frame.groupby(list(table.apart), sort=False)]
    figures = []
    for number, part in enumerate(parts):
        figure = draw(table, part, f"-{number}" if number else "")
        if figure is not None:
            figures.append(figure)
    return figures


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
    rows = _Rows(frame)
    shown = [panel for panel in figure if _has_values(panel, frame)]
    scatters = [panel for panel in shown if isinstance(panel, Scatter)]
    others = [panel for panel in shown if not isinstance(panel, Scatter)]
    if scatters:
        return drawing.svg(*_scatters(scatters, rows), title)
    if others:
        return drawing.svg(*_side_by_side(others, rows, f"figure-{name}"), title)
    return None


def _side_by_side(
    panels: Sequence[Rowed], rows: "_Rows", name: str
) -> tuple[list[str], float]:
    """The marks of panels that share their rows, and the figure's height."""
    names = [*map(drawing.shortened, rows.labels)]
    ends = [_ends(panel, rows) for panel in panels]
    rooms = [max(map(drawing.width_of, texts)) + _BETWEEN for texts in ends]
    left = max(map(drawing.width_of, names)) + _BESIDE
    free = drawing.WIDTH - left - sum(rooms) + _BETWEEN - _BESIDE
    unit = free / sum(panel.width for panel in panels)
    height = float(drawing.ROW * max(len(names), 2))
    titles = [
        drawing.wrapped(_written(panel.title, rows.frame), unit * panel.width + room)
        for panel, room in zip(panels, rooms, strict=True)
    ]
    top = _TOP + drawing.LINE * (max(map(len, titles)) - 1)
    plots = []
    for panel, room, texts, title in zip(panels, rooms, ends, titles, strict=True):
        plot = Plot(left, top, unit * panel.width, height)
        plot.title(title)
        if isinstance(panel, Dots):
            _dots(plot, panel, rows)
        elif isinstance(panel, Bars):
            _bars(plot, panel, rows, name)
        else:
            _heat(plot, panel, rows)
        plot.ends(texts)
        left += plot.width + room
        plots.append(plot)
    plots[0].name_rows(names, rows.labels)
    hatched = any(isinstance(panel, Bars) for panel in panels)
    marks = [drawing.hatches(name)] if hatched else []
    for plot in plots:
        marks += plot.marks
    bottom, height = plots[0].bottom + _AXIS, 0.0
    legends = _legends(panels, plots, rows)
    rights = [*(left for left, _ in legends[1:]), float(drawing.WIDTH)]
    for (left, entries), right in zip(legends, rights, strict=False):
        drawn, lines = drawing.legend(left, bottom, right, entries, name)
        marks, height = marks + drawn, max(height, lines)
    return marks, bottom + height


def _legends(
    panels: Sequence[Rowed], plots: Sequence[Plot], rows: "_Rows"
) -> list[tuple[float, list[Entry]]]:
    """The legends and where they begin: of each panel with several series or parts,
    unless the legends before have all of its names."""
    told: set[str] = set()
    legends = []
    for panel, plot in zip(panels, plots, strict=True):
        entries = _entries(panel, rows)
        labels = {entry.label for entry in entries}
        if not labels <= told:
            told |= labels
            legends.append((plot.left, entries))
    return legends


def _entries(panel: Rowed, rows: "_Rows") -> list[Entry]:
    """The names in a panel's legend: those with a value; none of a single series."""
    entries = []
    if isinstance(panel, Bars):
        for hatch, part in enumerate(panel.parts.values()):
            entries.append(Entry(*part, hatch=hatch))
    elif isinstance(panel, Dots) and len(panel.series_of(rows.frame)) > 1:
        for series in panel.series_of(rows.frame):
            values = {*rows.values(series.column, series.where)}
            if series.label and values != {None}:
                dot = Entry(series.label, series.colour, hollow=series.hollow)
                entries.append(dot)
    return entries


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


def _ends(panel: Rowed, rows: _Rows) -> list[str]:
    """What stands right of each row: the values of its filled dots, equal ones once,
    and its note."""
    texts: list[list[str]] = [[] for _ in rows.keys]
    if isinstance(panel, Dots) and panel.text is not None:
        series = [each for each in panel.series_of(rows.frame) if not each.hollow]
        columns = [rows.values(each.column, each.where) for each in series]
        for row, values in zip(texts, zip(*columns, strict=True), strict=True):
            known = sorted(v for v in values if v is not None and math.isfinite(v))
            row += dict.fromkeys(map(panel.text, known))
    if not isinstance(panel, Heat) and panel.note is not None:
        noted = rows.values(panel.note.column, panel.note.where)
        for row, value in zip(texts, noted, strict=True):
            row.append(panel.note.text(value))
    return ["  ".join(row) for row in texts]


def _dots(plot: Plot, panel: Dots, rows: _Rows) -> None:
    drawn = [
        (series, _points(series, panel, rows)) for series in panel.series_of(rows.frame)
    ]
    marked = [] if panel.line is None else [panel.line]
    points = [point for _, points in drawn for point in points]
    ends = [
        end for point in points for end in (point.low, point.high) if end is not None
    ]
    known = [point.value for point in points if math.isfinite(point.value)]
    scale = Scale(0.0, 1.0, {})  # an axis of infinite values alone has no range
    if known:
        known += marked
        reach = [*known, *filter(math.isfinite, ends)]
        scale = drawing.scale_of(
            panel.axis, known, reach, max(3, int(plot.width / _TICK))
        )
        plot.across(scale)
        zero = [0.0] if panel.axis in ("points", "changes") else []
        for value in {*zero, *marked}:
            plot.upright(scale, value)
    if panel.linked:
        for row in range(len(rows.keys)):
            plot.link(scale, row, [p.value for p in points if round(p.row) == row])
    for series, points in drawn:
        plot.intervals(scale, points, series.colour)
    for series, points in drawn:
        plot.dots(scale, points, series.colour, hollow=series.hollow)


def _points(series: Series, panel: Dots, rows: _Rows) -> list[Point]:
    values = rows.values(series.column, series.where)
    low, high = f"{series.column}_low", f"{series.column}_high"
    lows: Numbers = [None] * len(values)
    highs = lows
    if low in rows.frame:
        lows, highs = rows.values(low, series.where), rows.values(high, series.where)
    shown = drawing.AS_TEXT.get(panel.axis, amount)
    points = []
    for row, (value, start, end) in enumerate(zip(values, lows, highs, strict=True)):
        if value is None:
            continue
        label = f"{series.label}: {shown(value)}"
        if start is not None and end is not None:
            label += f" ({shown(start)} to {shown(end)})"
        points.append(Point(row + series.shift, value, start, end, label))
    return points


def _bars(plot: Plot, panel: Bars, rows: _Rows, name: str) -> None:
    plot.across(drawing.SHARES, grid=False)
    starts = [0.0] * len(rows.keys)
    for hatch, (column, part) in enumerate(panel.parts.items()):
        for row, value in enumerate(rows.values(column, panel.where)):
            if value:
                plot.bar(row, Bar(starts[row], value, *part, hatch), name)
                starts[row] += value


def _heat(plot: Plot, panel: Heat, rows: _Rows) -> None:
    languages = sorted(set(rows.frame["language"]) - {ALL, MEAN})
    for column, language in enumerate(languages):
        values = rows.values(panel.column, {**panel.where, "language": language})
        left, right = column / len(languages), (column + 1) / len(languages)
        for row, value in enumerate(values):
            if value is not None:
                is_negative = panel.negative and value < 0
                colour = panel.negative if is_negative else panel.colour
                strength = min(max(panel.strength(value), 0.0), 1.0)
                plot.tile(row, left, right, panel.text(value), colour, strength)
        plot.below((left + right) / 2, drawing.short(language), language)


def _scatters(panels: Sequence[Scatter], rows: _Rows) -> tuple[list[str], float]:
    """A panel for each scatter, or for each checkpoint and task of one scatter: the
    marks, and the figure's height."""
    parts = _scatter_parts(panels, rows)
    slot = drawing.WIDTH / len(parts)
    titles = [drawing.wrapped(title, slot) for _, title, _ in parts]
    top = _TOP + drawing.LINE * (max(map(len, titles)) - 1)
    marks: list[str] = []
    bottom = 0.0
    for place, (panel, _, part) in enumerate(parts):
        left = slot * place + _SCATTER_LEFT
        width = slot - _SCATTER_LEFT - _BESIDE
        plot = Plot(left, top, width, _SCATTER_HEIGHT)
        plot.title(titles[place])
        alike = [other for other in parts if other[0].axis == panel.axis]
        heights = [
            value for other, _, rest in alike for value in rest[other.y].dropna()
        ]
        across, upwards = _across(panel, part, width), _upwards(panel, heights)
        plot.across(across)
        plot.upwards(upwards)
        plot.titles(_written(panel.x_title, part), "" if place else panel.y_title)
        points: dict[tuple[float, float], list[str]] = {}
        for row in part.to_dict("records"):
            at = plot.x(across, row[panel.x]), plot.y(upwards, row[panel.y])
            name = row[panel.name]
            if not panel.each:
                name = drawing.shortened(rows.label(row["task"], name))
            hollow = bool(row[panel.hollow])
            plot.marks.append(drawing.dot(*at, panel.colour, hollow=hollow, whole=name))
            points.setdefault(at, []).append(name)
        bottom = max(bottom, plot.number(points))
        marks += plot.marks
    first = panels[0]
    if any(first.labels) and rows.frame[first.hollow].any():
        entries = [
            Entry(first.labels[0], first.colour),
            Entry(first.labels[1], first.colour, hollow=True),
        ]
        drawn, tall = drawing.legend(
            _SCATTER_LEFT, bottom + 10, drawing.WIDTH, entries, ""
        )
        marks, bottom = marks + drawn, bottom + 10 + tall
    return marks, bottom


def _scatter_parts(
    panels: Sequence[Scatter], rows: _Rows
) -> list[tuple[Scatter, str, pd.DataFrame]]:
    """Each panel with its title and its rows."""
    frame, first, parts = rows.frame, panels[0], []
    for panel in panels:
        sizes = frame[[panel.x, panel.y]].astype(float).abs()
        finite = frame[(sizes < math.inf).all(axis=1)]
        parts.append((panel, _written(panel.title, frame), finite))
    if not first.each:
        return parts
    finite, parts = parts[0][2], []
    for key, label in zip(rows.keys, rows.labels, strict=True):
        same = (finite["task"] == key[0]) & (finite["checkpoint"] == key[1])
        parts.append((first, label, finite[same]))
    return parts


def _across(panel: Scatter, part: pd.DataFrame, width: float) -> Scale:
    values = [float(value) for value in part[panel.x]] or [0.0, 1.0]
    low, high = min(values), max(values)
    shown = drawing.as_amount if panel.log else None
    if panel.log and (positive := [value for value in values if value > 0]):
        low = min(positive)
        if high >= 4 * low:
            return drawing.log_scale(low / 1.5, 1.5 * high, shown)
    room = 0.15 * (high - low) or 0.1 * abs(low) or 0.1
    most = max(3, int(width / _TICK))
    return drawing.even_scale(low - room, high + room, shown, most)


def _upwards(panel: Scatter, values: Sequence[float]) -> Scale:
    if panel.axis == "rates":
        return Scale(-0.04, 1.04, drawing.SHARES.ticks)
    low, high = min(0.0, *values) - 0.03, max(0.0, *values) + 0.05
    return drawing.even_scale(low, high, drawing.AS_TEXT.get(panel.axis))
