"""The style of the figures: one row per checkpoint, direct labels, a light grid, and
colours from the page.

Every colour is one of the page's light theme, and in SVG the CSS variable of that
colour. So a figure is readable on light and on dark backgrounds, and a fate or probe
has the same colour in figures, tables and the item view. Text stays text. The same
numbers give the same SVG: no date, salted ids."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from evaluator.core.errors import MORE
from evaluator.metrics.columns import MINUS, rounded
from evaluator.metrics.table import Axis, Series, amount

Axes = Any  # matplotlib is untyped here


@cache
def asset(name: str) -> str:
    """The text of a file of the page."""
    return files("evaluator.report").joinpath(name).read_text(encoding="utf-8")


@cache
def light() -> Mapping[str, str]:
    """The values of the page's CSS variables in its light theme, which comes first,
    by name (`--mc-only`)."""
    style = asset("page.css").partition("@media")[0]
    return dict(re.findall(r"(--[a-z0-9-]+):\s*([^;]+);", style))


# Name of a colour on the page -> its light value. Names of one colour have one colour
# in the dark theme too.
COLOURS: Mapping[str, str] = {
    name: light()[f"--{name.replace('_', '-')}"]
    for name in (
        *("ink", "muted", "grid", "paper"),
        *("kept", "mc_only", "produced_only", "lost"),
        *("greedy", "beam", "sample", "choice", "shown", "rank", "negative"),
    )
}
STYLE = {  # matplotlib's settings while a figure is drawn and written
    "svg.fonttype": "none",
    "hatch.linewidth": 0.5,
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.edgecolor": COLOURS["grid"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.titley": 1.0,  # else each drawing measures all labels for it
    "text.color": COLOURS["ink"],
    # a checkpoint or a language may have two dollars in its name
    "text.parse_math": False,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["ink"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

WHOLE = "whole: "  # begins the id of a text, of which `to_svg` makes its tooltip
ROW_INCHES = 0.34
WIDTH_INCHES = 10.4
_GAP = 0.12  # between panels within another figure, of a panel's width
Canvas = Any  # makes a figure; or axes, which panels then cover


def figure(
    rows: int, widths: Sequence[float], canvas: Canvas = Figure, *, sharey: bool = True
) -> list[Axes]:
    """A panel per width, in a new figure or within `canvas`. With `sharey` all share
    `rows` checkpoint rows, the first at the top."""
    if callable(canvas):
        made = canvas(
            figsize=(WIDTH_INCHES, 1.15 + ROW_INCHES * max(rows, 2)),
            layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.04, wspace=0.03),
        )
        (panels,) = made.subplots(
            1, len(widths), sharey=sharey, squeeze=False, width_ratios=list(widths)
        )
    else:
        canvas.set_axis_off()
        panels, total, left = [], sum(widths), 0.0
        for width in widths:
            box = (left / total, 0, (1 - _GAP) * width / total, 1)
            panels.append(canvas.inset_axes(box, sharey=panels[0] if panels else None))
            panels[-1].tick_params(labelleft=left == 0)
            left += width
    for panel in panels:
        panel.set_ylim(rows - 0.5, -0.5)
        panel.grid(axis="x", color=COLOURS["grid"], linewidth=0.7)
        panel.set_axisbelow(True)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
    return list(panels)


def shortened(name: str, width: int = 36) -> str:
    """A name without its middle if it is longer than `width` characters."""
    if len(name) <= width:
        return name
    half = width // 2
    return name[:half] + MORE + name[-half:]


def name_rows(panel: Axes, labels: Sequence[str]) -> None:
    """Write a label left of each row; the whole one is its tooltip."""
    panel.set_yticks(range(len(labels)), list(map(shortened, labels)))
    for tick, label in zip(panel.get_yticklabels(), labels, strict=True):
        tick.set_gid(WHOLE + label)


def percent_axis(panel: Axes, low: float, high: float) -> None:
    panel.set_xlim(low, high)
    ticks = [quarter / 4 for quarter in range(-4, 5) if low <= quarter / 4 <= high]
    panel.set_xticks(ticks, list(map(as_percent, ticks)))


def set_axis(panel: Axes, axis: Axis, values: Sequence[float]) -> None:
    """The axis of a panel whose dots are drawn already; `values`: of the dots.
    Amounts of 0 have no place on it."""
    low, high = panel.get_xlim()
    if axis == "rates":
        percent_axis(panel, -0.02, 1.04)
    elif axis == "share":
        panel.set_xlim(min(low, 0.9), max(high, 1.05))
        panel.xaxis.set_major_formatter(as_percent)
    elif axis in ("points", "changes"):
        # zero is marked, and a minimum range keeps noise around zero small
        panel.set_xlim(min(low, -0.05), max(high, 0.1))
        panel.axvline(0, color=COLOURS["muted"], linewidth=1)
        if axis == "points":
            panel.xaxis.set_major_formatter(as_points)
    elif axis == "places":
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif axis != "amounts":
        _amount_axis(panel, min(values), max(values))
    elif positive := [value for value in values if value > 0]:
        _amount_axis(panel, min(positive), max(positive))


def _amount_axis(panel: Axes, least: float, most: float) -> None:
    if most < 4 * least:
        low, high = panel.get_xlim()
        room = max(0.15 * (most - least), 0.03 * most)
        panel.set_xlim(min(low, least - room), max(high, most + room))
        return
    low, high = 0.7 * least, 1.4 * most
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    ticks = []
    for power in range(-3, 9):
        ticks += [digit * 10.0**power for digit in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if high / low >= 100:
        ticks = ticks[::3]
    panel.set_xticks(ticks, list(map(amount, ticks)))
    panel.set_xticks([], minor=True)


def as_percent(value: float, _: object = None) -> str:
    """A share as a whole percentage, for an axis."""
    return f"{rounded(100 * value)} %"


def as_points(value: float, _: object = None) -> str:
    """A difference of two shares in whole percentage points, for an axis."""
    return f"{rounded(100 * value)} pp"


def as_amount(value: float, _: object = None) -> str:
    """A number of parameters or bytes for an axis: 600 M, 14 B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


def label_values(
    panel: Axes, *series: Sequence[float | None], text: Callable[[float], str]
) -> None:
    """Write each row's values right of it, in the order of its dots, equal ones
    once."""
    style = {"va": "center", "fontsize": 7.3, "color": COLOURS["muted"]}
    for y, row in enumerate(zip(*series, strict=True)):
        known = sorted(value for value in row if value is not None)
        labels = dict.fromkeys(map(text, known))
        panel.text(
            1.01, y, "  ".join(labels), transform=panel.get_yaxis_transform(), **style
        )


# of a bar's parts: not everybody tells the colours apart
_HATCHES = ("", "////", "....", "xxxx")


def number_points(panel: Axes, points: Mapping[Any, str]) -> None:
    """Write a number beside each point, and the names of all below the panel."""
    style = {"textcoords": "offset points", "fontsize": 7.3, "color": COLOURS["muted"]}
    key = []
    for number, (point, name) in enumerate(points.items(), start=1):
        panel.annotate(str(number), point, xytext=(5, 0), va="center", **style)
        key.append(f"{number}  {name}")
    below = {"xycoords": "axes fraction", "xytext": (0, -34), "va": "top"}
    panel.annotate("\n".join(key), (0, 0), **below, **style)


def dots(
    panel: Axes,
    values: Sequence[float | None],
    series: Series,
    whiskers: Sequence[tuple[float | None, float | None]],
) -> None:
    """Draw one dot per row, with its interval from `whiskers` (low, high) as a line.
    A missing value has no dot."""
    paint = COLOURS[series.colour]
    intervals = []
    for y, (low, high) in enumerate(whiskers):
        if low is not None and high is not None:
            intervals.append((y + series.shift, low, high))
    if intervals:
        look = {"linewidth": 1.6, "alpha": 0.45, "capstyle": "round"}
        panel.hlines(*zip(*intervals, strict=True), color=paint, **look)
    panel.scatter(
        [value for value in values if value is not None],
        [y + series.shift for y, value in enumerate(values) if value is not None],
        s=30,
        facecolor=COLOURS["paper"] if series.hollow else paint,
        edgecolor=paint,
        linewidth=1.3,
        label=series.label,
        zorder=3,
    )


def mark_cut(
    panel: Axes, series: Series, whiskers: Sequence[tuple[float | None, float | None]]
) -> None:
    """Put an arrow at the end of the axis where an interval goes on beyond it. Call it
    when limits are final."""
    low, high = panel.get_xlim()
    style = {"color": COLOURS[series.colour], "markersize": 5, "clip_on": False}
    for y, (start, end) in enumerate(whiskers):
        if start is not None and start < low:
            panel.plot(low, y + series.shift, "<", **style)
        if end is not None and end > high:
            panel.plot(high, y + series.shift, ">", **style)


def mark_infinite(panel: Axes, values: Sequence[float | None], colour: str) -> None:
    """Write an infinity sign at the end of the axis in each row whose value has no
    place on it."""
    style = {"color": COLOURS[colour], "transform": panel.get_yaxis_transform()}
    for y, value in enumerate(values):
        if value == math.inf:
            panel.text(0.99, y, "\u221e", ha="right", va="center", **style)
        elif value == -math.inf:
            panel.text(0.01, y, f"{MINUS}\u221e", ha="left", va="center", **style)


def link(panel: Axes, *series: Sequence[float | None]) -> None:
    """Draw a line through each row's values, from the smallest to the largest."""
    links = []
    for y, row in enumerate(zip(*series, strict=True)):
        known = [value for value in row if value is not None]
        if len(known) > 1:
            links.append((y, min(known), max(known)))
    if links:
        look = {"linewidth": 3, "zorder": 1}
        panel.hlines(*zip(*links, strict=True), color=COLOURS["grid"], **look)


def stacked(
    panel: Axes, parts: Sequence[tuple[Sequence[float | None], str, str, float]]
) -> None:
    """Draw one full-width bar per row. `parts`: the values of each, its name, colour
    and opacity. Parts from 6 % on have a label."""
    left = [0.0] * len(parts[0][0])
    for (values, name, colour, alpha), hatch in zip(parts, cycle(_HATCHES)):
        known = [value or 0.0 for value in values]
        bars = panel.barh(
            range(len(known)),
            known,
            left=left,
            height=0.66,
            label=name,
            color=COLOURS[colour],
            alpha=alpha,
            linewidth=0,
            hatch=hatch,
            edgecolor=COLOURS["paper"],
        )
        ink = COLOURS["paper"] if alpha > 0.5 else COLOURS["ink"]
        style: dict[str, Any] = {"color": ink, "ha": "center", "va": "center"}
        style["in_layout"] = False  # it is within the panel
        if hatch and alpha > 0.5:
            style["bbox"] = {"facecolor": COLOURS[colour], "linewidth": 0, "pad": 1.2}
        for bar, value in zip(bars, known, strict=True):
            if value >= 0.06:
                x, y = bar.get_x() + bar.get_width() / 2, bar.get_y() + 0.34
                panel.text(x, y, rounded(100 * value), **style)
        left = [start + value for start, value in zip(left, known, strict=True)]
    panel.grid(visible=False)


def heat(
    panel: Axes,
    columns: Sequence[str],
    cells: Mapping[tuple[int, str], tuple[str, float, str]],
) -> None:
    """Draw rows x languages: `cells[row, column]` = (text, strength 0..1, colour). A
    missing cell stays blank."""
    panel.set_xlim(-0.5, len(columns) - 0.5)
    panel.grid(visible=False)
    panel.spines["bottom"].set_visible(False)
    panel.set_xticks(range(len(columns)), [short(name) for name in columns])
    for (row, column), (text, strength, colour) in cells.items():
        x = list(columns).index(column)
        # the text on it keeps a contrast of 4.5 in both themes
        alpha = 0.08 + 0.4 * min(max(strength, 0.0), 1.0)
        corner = x - 0.46, row - 0.42
        paint = COLOURS[colour]
        panel.add_artist(
            Rectangle(corner, 0.92, 0.84, color=paint, alpha=alpha, linewidth=0)
        )
        style = {"ha": "center", "va": "center", "fontsize": 7.8}
        panel.text(x, row, text, in_layout=False, **style)


def legend(panel: Axes, columns: int = 4) -> None:
    """A legend under the panel; none if the panel has no labelled values."""
    if not panel.get_legend_handles_labels()[0]:
        return
    panel.legend(
        loc="upper left", bbox_to_anchor=(-0.01, -0.24 / (ROW_INCHES * max(panel.get_ylim()[0] + 0.5, 2))),
        ncols=columns, frameon=False, fontsize=8.5, handletextpad=0.4, columnspacing=1.4, borderpad=0,
    )  # fmt: skip


def to_svg(made: Figure, name: str, description: str) -> str:
    """The figure as inline SVG. Colours become CSS variables, and the figure's name
    prefixes all ids."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        FigureCanvasSVG(made).print_svg(
            buffer,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for colour, value in COLOURS.items():
        svg = svg.replace(f": {value}", f": var(--{colour.replace('_', '-')})")
    svg = re.sub(rf'<g id="{WHOLE}([^"]*)">', r"<g><title>\1</title>", svg)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    text = escape(description)
    spaces = (
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    )
    opening = f'<svg class="figure" role="img" aria-label="{text}" viewBox='
    svg = re.sub(
        r'^<svg [^>]*?viewBox=("[^"]+")[^>]*>',
        lambda match: f"{opening}{match[1]} {spaces}>",
        svg,
        count=1,
        flags=re.DOTALL,
    )
    return svg.replace("'DejaVu Sans'", "var(--sans)")


def short(language: str) -> str:
    """A language's name in at most four characters."""
    return language if len(language) <= 4 else f"{language[:3]}."
