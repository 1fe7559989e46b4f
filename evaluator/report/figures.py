"""Draws the figures that tables describe (`evaluator.metrics.table`), as inline SVG
or as matplotlib's axes."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from evaluator.metrics.inputs import ALL, MEAN, rows_where
from evaluator.metrics.table import Bars, Dots, Heat, Note, Panel, Scatter, Table
from evaluator.report import theme

_SCATTER_ROWS = 7  # the height of a scatter
_TITLE_CHARACTERS = 96  # of all panels, side by side
Numbers = list[float | None]
Axes = Any  # matplotlib is untyped here


def draw_each(table: Table, frame: pd.DataFrame) -> list[str]:
    """The figures of a table as inline SVG: one, or one for each part that the table
    keeps `apart`."""
    found = (
        draw(table, part, f"-{number}" if number else "")
        for number, part in enumerate(parts_of(table, frame))
    )
    return [figure for figure in found if figure is not None]


def parts_of(table: Table, frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows of each figure of a table."""
    return (
        [part for _, part in frame.groupby(list(table.apart), sort=False)]
        if table.apart
        else [frame]
    )


def axes_of(table: Table, frame: pd.DataFrame, place: theme.Place) -> list[Axes]:
    """The panels of one figure (`parts_of`), within `place` (`theme.figure`); none
    without a figure or a value."""
    if not table.figure or frame.empty:
        return []
    with mpl.rc_context(theme.STYLE):
        return _painted(table.figure, table.plotted(frame), place)


def draw(table: Table, frame: pd.DataFrame, suffix: str = "") -> str | None:
    """The figure of a table as inline SVG, `suffix` for its name; None if there is
    no figure or no value."""
    with mpl.rc_context(theme.STYLE), warnings.catch_warnings():
        # The browser draws the text with its own fonts. A glyph missing in matplotlib's
        # font only shifts a label.
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font", UserWarning)
        panels = axes_of(table, frame, Figure)
        name = f"figure-{table.name.replace('_', '-')}{suffix}"
        return (
            theme.to_svg(panels[0].figure, name, f"Figure of table {table.name}")
            if panels
            else None
        )


def _painted(
    figure: Sequence[Panel], frame: pd.DataFrame, place: theme.Place
) -> list[Axes]:
    rows = _Rows(frame)
    shown = [panel for panel in figure if rows.keys and _has_values(panel, frame)]
    if not shown:
        return []
    if isinstance(shown[0], Scatter):
        return _scatters(
            [panel for panel in shown if isinstance(panel, Scatter)], rows, place
        )
    panels = theme.figure(
        len(rows.keys),
        [each.width for each in shown if not isinstance(each, Scatter)],
        place,
    )
    theme.name_rows(panels[0], rows.labels)
    told = {
        each.label
        for panel in shown
        if isinstance(panel, Dots)
        for each in panel.series_of(frame)
        if any(value is not None for value in rows.values(each.column, each.where))
    }
    several = (
        each
        for each in shown
        if isinstance(each, Bars)
        or (isinstance(each, Dots) and len(each.series_of(frame)) > 1)
    )
    first = next(several, None)  # which has the legend
    for axes, panel in zip(panels, shown, strict=True):
        if isinstance(panel, Dots):
            _dots(axes, panel, rows, told)
        elif isinstance(panel, Bars):
            _bars(axes, panel, rows)
        elif isinstance(panel, Heat):
            _heat(axes, panel, rows)
        axes.set_title(_written(panel.title, frame))
        if columns := (
            panel.legend
            if isinstance(panel, Dots) and panel.legend
            else 4 * (panel is first)
        ):
            theme.legend(axes, columns=columns)
    return panels


def _has_values(panel: Panel, frame: pd.DataFrame) -> bool:
    if isinstance(panel, Dots):
        wanted = [(each.column, each.where) for each in panel.series_of(frame)]
    elif isinstance(panel, Bars):
        wanted = [(column, panel.where) for column in panel.parts]
    elif isinstance(panel, Heat):
        return bool(rows_where(frame, panel.where)[panel.column].notna().any())
    else:
        return bool((frame[panel.x].notna() & frame[panel.y].notna()).any())
    return any(
        rows_where(frame, {"language": ALL, **where})[column].notna().any()
        for column, where in wanted
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
        self.keys = list(
            frame[["task", "checkpoint"]]
            .drop_duplicates()
            .itertuples(index=False, name=None)
        )
        self.labels = [self.label(task, checkpoint) for task, checkpoint in self.keys]

    def label(self, task: str, checkpoint: str) -> str:
        return (
            checkpoint
            if self.frame["task"].nunique() == 1
            else f"{checkpoint} · {task}"
        )

    def values(self, column: str, where: Mapping[str, str]) -> Numbers:
        rows = rows_where(self.frame, {"language": ALL, **where})
        found = dict(
            zip(
                zip(rows["task"], rows["checkpoint"], strict=True),
                rows[column],
                strict=True,
            )
        )
        picked = [found.get(key) for key in self.keys]
        return [
            None if value is None or pd.isna(value) else float(value)
            for value in picked
        ]


def _dots(axes: Axes, panel: Dots, rows: _Rows, told: Collection[str]) -> None:
    """`told`: the labels of the legend, those of every series with a value in any
    panel."""
    drawn = []
    for each in panel.series_of(rows.frame):
        if each.label in told:
            values = rows.values(each.column, each.where)
            drawn.append(
                (
                    each,
                    [
                        None if value is None or math.isinf(value) else value
                        for value in values
                    ],
                )
            )
            theme.mark_infinite(axes, values, each.colour)
    if panel.linked:
        theme.link(axes, *(values for _, values in drawn))
    for each, values in drawn:
        whiskers: list[tuple[float | None, float | None]] = []
        if f"{each.column}_low" in rows.frame:
            ends = (
                rows.values(f"{each.column}{end}", each.where)
                for end in ("_low", "_high")
            )
            whiskers = list(zip(*ends, strict=True))
        theme.dots(
            axes,
            values,
            each.colour,
            each.label,
            whiskers=whiskers,
            shift=each.shift,
            hollow=each.hollow,
        )
    if panel.line is not None:
        axes.axvline(panel.line, color=theme.COLOURS["muted"], linewidth=1)
    known = [value for _, values in drawn for value in values if value is not None]
    if known:  # an axis of infinite values alone has no range
        theme.set_axis(
            axes, panel.axis, known if panel.line is None else [panel.line, *known]
        )
    if panel.text is not None:
        theme.label_values(
            axes,
            *(values for each, values in drawn if not each.hollow),
            text=panel.text,
        )
    if panel.note is not None:
        _notes(axes, panel.note, rows, 1.06)


def _bars(axes: Axes, panel: Bars, rows: _Rows) -> None:
    shares = {
        name: rows.values(column, panel.where)
        for column, (name, _, _) in panel.parts.items()
    }
    theme.stacked(
        axes,
        shares,
        {name: (colour, alpha) for name, colour, alpha in panel.parts.values()},
    )
    if panel.note is not None:
        _notes(axes, panel.note, rows, 1.012)
    theme.percent_axis(axes, 0.0, 1.0)


def _notes(axes: Axes, note: Note, rows: _Rows, end: float) -> None:
    for y, value in enumerate(rows.values(note.column, note.where)):
        x = 0.0 if value is None else end
        axes.text(
            x,
            y,
            note.text(value),
            va="center",
            fontsize=7.8,
            color=theme.COLOURS["muted"],
        )


def _heat(axes: Axes, panel: Heat, rows: _Rows) -> None:
    languages, cells = sorted(set(rows.frame["language"]) - {ALL, MEAN}), {}
    for language in languages:
        for row, value in enumerate(
            rows.values(panel.column, {**panel.where, "language": language})
        ):
            if value is not None:
                colour = (
                    panel.negative if panel.negative and value < 0 else panel.colour
                )
                cells[row, language] = panel.text(value), panel.strength(value), colour
    theme.heat(axes, languages, cells)


def _scatters(panels: Sequence[Scatter], rows: _Rows, place: theme.Place) -> list[Axes]:
    """A panel for each scatter, or for each checkpoint and task of one scatter."""
    frame = rows.frame
    parts = []
    for panel in panels:
        has_a_place = (frame[[panel.x, panel.y]].astype(float).abs() < math.inf).all(
            axis=1
        )
        parts.append((panel, _written(panel.title, frame), frame[has_a_place]))
    if panels[0].each:
        parts = [
            (
                panels[0],
                label,
                frame[(frame["task"] == task) & (frame["checkpoint"] == checkpoint)],
            )
            for (task, checkpoint), label in zip(rows.keys, rows.labels, strict=True)
        ]
    axes = theme.figure(_SCATTER_ROWS, [1.0] * len(parts), place)
    low, high = (
        min(0.0, frame[panels[0].y].min()) - 0.03,
        frame[panels[0].y].max() + 0.05,
    )
    for at, (panel, title, part) in zip(axes, parts, strict=True):
        hollow = part[panel.hollow].astype(bool)
        edge, paper = theme.COLOURS[panel.colour], theme.COLOURS["paper"]
        for chosen, face, label in zip(
            (~hollow, hollow), (edge, paper), panel.labels, strict=True
        ):
            dots = part[chosen]
            at.scatter(
                dots[panel.x],
                dots[panel.y],
                s=30,
                facecolor=face,
                edgecolor=edge,
                label=label,
                zorder=3,
            )
        if panel.log:
            at.set_xscale("log")
        at.set_ylim(*((-0.04, 1.04) if panel.axis == "rates" else (low, high)))
        at.yaxis.set_major_formatter(
            theme.as_percent if panel.axis == "rates" else theme.as_points
        )
        at.grid(axis="y", color=theme.COLOURS["grid"], linewidth=0.7)
        at.set_xlabel(_written(panel.x_title, part))
        at.margins(x=0.15 if panel.each else 0.2)
        at.tick_params(labelleft=True)
        at.set_title(theme.in_two_lines(title, _TITLE_CHARACTERS // len(parts)))
    axes[0].set_ylabel(panels[0].y_title)
    if any(panels[0].labels) and frame[panels[0].hollow].any():
        theme.legend(axes[0])
    # names stand beside dots in their final places
    axes[0].figure.draw_without_rendering()
    for at, (panel, _, part) in zip(axes, parts, strict=True):
        names = (
            part[panel.name].map(theme.short)
            if panel.each
            else map(rows.label, part["task"], part[panel.name])
        )
        texts = (
            part.assign(text=list(names))
            .groupby([panel.x, panel.y], sort=False)["text"]
            .agg(", ".join)
        )
        theme.name_points(at, texts.to_dict())
    return axes
