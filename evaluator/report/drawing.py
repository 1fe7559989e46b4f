"""Figures as SVG: panels side by side, with scales, axes and marks.

A length is a pixel of a figure that is `WIDTH` wide. Every colour is the name of a CSS
variable of the page, so a figure is readable in its light and in its dark theme, and a
fate or probe has the same colour in figures, tables and the item view. Text stays
text. The same numbers give the same SVG."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from textwrap import wrap
from typing import NamedTuple
from unicodedata import east_asian_width

from evaluator.core.errors import MORE
from evaluator.metrics.columns import MINUS, rounded
from evaluator.metrics.table import Axis, amount

WIDTH = 1070
ROW = 32
FONT = 12
SMALL = 10.5
LINE = 15  # of text
_BAR = 20.0  # the height of one
# of a bar's parts, as not everybody tells the colours apart: what a tile of 6 x 6 has
_HATCHES = (
    "",
    "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
    "M2,3 h1 M5,6 h1",
    "M0,0 l6,6 M0,6 l6,-6",
)
_QUARTERS = tuple(quarter / 4 for quarter in range(5))


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


def paint(colour: str) -> str:
    """A colour of the page, `mc_only` say. Raises KeyError for one that it lacks."""
    name = f"--{colour.replace('_', '-')}"
    light()[name]
    return f"var({name})"


def element(kind: str, *body: str, **attributes: object) -> str:
    """An element; `body` is SVG, `stroke_width` the attribute `stroke-width`."""
    opening = [kind]
    for name, value in attributes.items():
        shown = f"{round(value, 2):g}" if isinstance(value, float) else str(value)
        opening.append(f'{name.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    return f"<{' '.join(opening)}>{''.join(body)}</{kind}>"


def tooltip(text: str) -> str:
    """What a browser shows over the element around it."""
    return element("title", escape(text)) if text else ""


def text(
    x: float,
    y: float,
    label: str,
    *,
    anchor: str = "start",
    size: float = FONT,
    colour: str = "ink",
    whole: str = "",
    **attributes: object,
) -> str:
    """A line of text around the height `y`; `whole`: its tooltip."""
    look = {"x": float(x), "y": y + 0.35 * size}
    if anchor != "start":
        attributes["text_anchor"] = anchor
    if size != FONT:
        attributes["font_size"] = size
    if colour != "ink":
        attributes["style"] = f"fill:{paint(colour)}"
    return element("text", escape(label), tooltip(whole), **look, **attributes)


def line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    colour: str,
    width: float,
    **more: object,
) -> str:
    ends = {"x1": float(x1), "y1": float(y1), "x2": float(x2), "y2": float(y2)}
    style = f"stroke:{paint(colour)}"
    return element("line", **ends, style=style, stroke_width=width, **more)


def dot(x: float, y: float, colour: str, *, hollow: bool, whole: str = "") -> str:
    """A dot with a tooltip."""
    style = f"fill:{paint('paper' if hollow else colour)};stroke:{paint(colour)}"
    place = {"cx": float(x), "cy": float(y), "r": 4.2}
    return element("circle", tooltip(whole), **place, stroke_width=1.5, style=style)


def _box(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    whole: str = "",
    **more: object,
) -> str:
    box = {"x": float(x), "y": float(y), "width": float(width), "height": float(height)}
    return element("rect", tooltip(whole), **box, style=f"fill:{fill}", **more)


def width_of(label: str, size: float = FONT) -> float:
    """About the width of a text: a browser chooses the font."""
    wide = sum(east_asian_width(letter) in "WF" for letter in label)
    return size * (0.56 * (len(label) - wide) + wide)


def wrapped(title: str, width: float) -> list[str]:
    """The lines of a bold title."""
    return wrap(title, max(8, int(width / (0.64 * FONT)))) or [""]


def shortened(name: str, width: int = 36) -> str:
    """A name without its middle if it is longer than `width` characters."""
    if len(name) <= width:
        return name
    half = width // 2
    return name[:half] + MORE + name[-half:]


class Scale(NamedTuple):
    """The values of an axis; `ticks`: value -> text."""

    low: float
    high: float
    ticks: Mapping[float, str]
    log: bool = False

    def share(self, value: float) -> float:
        """How far along the axis a value lies: from 0 to 1, beyond it if it has no
        place."""
        if not self.log:
            return (value - self.low) / (self.high - self.low)
        if value <= 0:
            return -math.inf
        return math.log(value / self.low) / math.log(self.high / self.low)


def as_percent(value: float) -> str:
    """A share as a whole percentage."""
    return f"{rounded(100 * value)} %"


def as_points(value: float) -> str:
    """A difference of two shares in whole percentage points."""
    return f"{rounded(100 * value)} pp"


def as_amount(value: float) -> str:
    """A number of parameters or bytes: 600 M, 14 B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


# how a value of an axis is written; of another, as its ticks' step demands
AS_TEXT: Mapping[str, Callable[[float], str]] = {
    "rates": as_percent,
    "share": as_percent,
    "points": as_points,
}
SHARES = Scale(0.0, 1.0, {each: as_percent(each) for each in _QUARTERS})


def even_scale(
    low: float,
    high: float,
    shown: Callable[[float], str] | None,
    most: int = 6,
    *,
    whole: bool = False,
) -> Scale:
    """A linear scale with at most `most` round ticks; `whole`: of whole numbers."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= 0.999 * least)
    if whole:
        step = max(step, 1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = {}
    for number in range(first, last + 1):
        value = round(number * step, digits)
        plain = f"{value:,.{digits}f}".replace("-", MINUS)
        ticks[value] = plain if shown is None else shown(value)
    return Scale(low, high, ticks)


def log_scale(
    low: float, high: float, shown: Callable[[float], str] | None = None
) -> Scale:
    """A scale of factors, with ticks at 1, 2 and 5, or at powers of ten."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if high / low < 100 else (1,)
    ticks = {}
    for power in range(first, last + 1):
        for digit in digits:
            value = digit * 10.0**power
            if low <= value <= high:
                ticks[value] = (shown or amount)(value)
    return Scale(low, high, ticks, log=True)


def scale_of(
    axis: Axis, values: Sequence[float], reach: Sequence[float], most: int
) -> Scale:
    """The scale of a panel's dots at `values`, whose intervals `reach` farther.
    Amounts of 0 have no place on it."""
    if axis == "rates":
        return Scale(-0.02, 1.04, SHARES.ticks)
    low, high = min(reach), max(reach)
    room = 0.05 * (high - low) or 0.05 * abs(low) or 0.05
    low, high = low - room, high + room
    if axis == "share":
        return even_scale(min(low, 0.9), max(high, 1.05), AS_TEXT.get(axis), most)
    if axis in ("points", "changes"):
        # a minimum range keeps noise around zero small
        return even_scale(min(low, -0.05), max(high, 0.1), AS_TEXT.get(axis), most)
    positive = [value for value in values if value > 0] or values
    smallest, largest = min(positive), max(positive)
    if axis == "amounts" and largest >= 4 * smallest > 0:
        return log_scale(0.7 * smallest, 1.4 * largest)
    if axis == "amounts":
        room = max(0.15 * (largest - smallest), 0.03 * largest)
        low, high = min(low, smallest - room), max(high, largest + room)
    return even_scale(low, high, None, most, whole=axis == "places")


class Point(NamedTuple):
    """A value in a row, its interval, and its tooltip."""

    row: float
    value: float
    low: float | None
    high: float | None
    label: str


class Bar(NamedTuple):
    """A part of a row's bar, of shares from 0 to 1, and how it looks."""

    start: float
    share: float
    name: str
    colour: str
    opacity: float
    hatch: int


class Plot:
    """The inside of a panel, `width` x `height` from (`left`, `top`), in which the
    methods collect `marks`."""

    def __init__(self, left: float, top: float, width: float, height: float) -> None:
        self.left, self.right = left, left + width
        self.top, self.bottom = top, top + height
        self.width = width
        self.marks: list[str] = []

    def x(self, scale: Scale, value: float) -> float:
        """The place of a value, at the edge for one beyond it."""
        return self.left + self.width * min(max(scale.share(value), 0.0), 1.0)

    def y(self, scale: Scale, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * scale.share(value)

    def row(self, number: float) -> float:
        """The height of a row's middle."""
        return self.top + ROW * (number + 0.5)

    def title(self, lines: Sequence[str]) -> None:
        for number, label in enumerate(reversed(lines)):
            y = self.top - 15 - number * LINE
            self.marks.append(text(self.left, y, label, size=13, font_weight="bold"))

    def titles(self, below: str, beside: str) -> None:
        """What the axes show."""
        x, y = (self.left + self.right) / 2, self.bottom + 32
        self.marks.append(text(x, y, below, anchor="middle", colour="muted"))
        x, y = self.left - 50, (self.top + self.bottom) / 2
        turned = f"rotate(-90 {x:g} {y:g})"
        self.marks.append(
            text(x, y, beside, anchor="middle", colour="muted", transform=turned)
        )

    def name_rows(self, labels: Sequence[str], whole: Sequence[str]) -> None:
        """Write a label left of each row; the whole one is its tooltip."""
        for row, (label, full) in enumerate(zip(labels, whole, strict=True)):
            x, y = self.left - 12, self.row(row)
            self.marks.append(text(x, y, label, anchor="end", whole=full))

    def ends(self, labels: Sequence[str]) -> None:
        """Write a label right of each row."""
        for row, label in enumerate(labels):
            if label:
                x, y = self.right + 10, self.row(row)
                self.marks.append(text(x, y, label, size=SMALL, colour="muted"))

    def across(self, scale: Scale, *, grid: bool = True) -> None:
        """The horizontal axis, below."""
        self.marks.append(
            line(self.left, self.bottom, self.right, self.bottom, "grid", 1)
        )
        for value, label in scale.ticks.items():
            if grid:
                x = self.x(scale, value)
                self.marks.append(line(x, self.top, x, self.bottom, "grid", 0.8))
            self.below(scale.share(value), label)

    def upwards(self, scale: Scale) -> None:
        """The vertical axis, left."""
        for value, label in scale.ticks.items():
            y = self.y(scale, value)
            self.marks.append(line(self.left, y, self.right, y, "grid", 0.8))
            self.marks.append(
                text(self.left - 8, y, label, anchor="end", colour="muted")
            )

    def below(self, share: float, label: str, whole: str = "") -> None:
        """A text under the bottom, `share` of the way to the right."""
        x, y = self.left + share * self.width, self.bottom + 14
        self.marks.append(
            text(x, y, label, anchor="middle", colour="muted", whole=whole)
        )

    def upright(self, scale: Scale, value: float) -> None:
        """A line at a value."""
        x = self.x(scale, value)
        self.marks.append(line(x, self.top, x, self.bottom, "muted", 1))

    def link(self, scale: Scale, row: int, values: Sequence[float]) -> None:
        """A thick line from the smallest to the largest value."""
        finite = [value for value in values if math.isfinite(value)]
        if len(finite) > 1:
            y, x1, x2 = (
                self.row(row),
                *(self.x(scale, end(finite)) for end in (min, max)),
            )
            self.marks.append(line(x1, y, x2, y, "grid", 4))

    def intervals(self, scale: Scale, points: Iterable[Point], colour: str) -> None:
        """The interval of each point as a line, which ends in an arrow where it goes
        on beyond the axis."""
        for point in points:
            if point.low is None or point.high is None:
                continue
            x1, x2 = self.x(scale, point.low), self.x(scale, point.high)
            y = self.row(point.row)
            look = {"opacity": 0.45, "stroke_linecap": "round"}
            self.marks.append(line(x1, y, x2, y, colour, 2, **look))
            if point.low < scale.low:
                self.marks.append(_arrow(x1, y, -6, colour))
            if point.high > scale.high:
                self.marks.append(_arrow(x2, y, 6, colour))

    def dots(
        self, scale: Scale, points: Iterable[Point], colour: str, *, hollow: bool
    ) -> None:
        """A dot at each value; an infinite one is written at the end of the axis."""
        for point in points:
            x, y = self.x(scale, point.value), self.row(point.row)
            if math.isfinite(point.value):
                self.marks.append(dot(x, y, colour, hollow=hollow, whole=point.label))
            elif point.value > 0:
                self.marks.append(text(x, y, "\u221e", anchor="end", colour=colour))
            else:
                self.marks.append(text(x, y, f"{MINUS}\u221e", colour=colour))

    def bar(self, row: int, bar: Bar, figure: str) -> None:
        """A part of a row's bar; it has a label from 6 % on."""
        x, y = self.x(SHARES, bar.start), self.row(row) - _BAR / 2
        width, label = self.width * bar.share, rounded(100 * bar.share)
        fill, whole = paint(bar.colour), f"{bar.name}: {label} %"
        self.marks.append(_box(x, y, width, _BAR, fill, whole, opacity=bar.opacity))
        hatch = bar.hatch % len(_HATCHES)
        if hatch:
            pattern = f"url(#{figure}-hatch-{hatch})"
            self.marks.append(_box(x, y, width, _BAR, pattern, pointer_events="none"))
        if bar.share < 0.06:
            return
        dark, middle, half = bar.opacity > 0.5, x + width / 2, width_of(label) / 2 + 1
        if hatch and dark:
            self.marks.append(_box(middle - half, y + 3, 2 * half, _BAR - 6, fill))
        colour = "paper" if dark else "ink"
        self.marks.append(
            text(middle, self.row(row), label, anchor="middle", colour=colour)
        )

    def tile(
        self,
        row: int,
        left: float,
        right: float,
        label: str,
        colour: str,
        strength: float,
    ) -> None:
        """A cell of a heat map, between two shares of the width."""
        x1, x2 = self.left + left * self.width + 2, self.left + right * self.width - 2
        # the text on it keeps a contrast of 4.5 in both themes
        opacity, y = 0.08 + 0.4 * strength, self.row(row)
        self.marks.append(_box(x1, y - 13, x2 - x1, 26, paint(colour), opacity=opacity))
        self.marks.append(text((x1 + x2) / 2, y, label, anchor="middle", size=SMALL))

    def number(self, points: Mapping[tuple[float, float], Sequence[str]]) -> float:
        """Write a number beside each point, and the names of all below the axis;
        returns where these end."""
        y = self.bottom + 38
        for number, (at, names) in enumerate(points.items(), start=1):
            y += LINE
            label = f"{number}  {', '.join(names)}"
            self.marks.append(
                text(at[0] + 7, at[1], str(number), size=SMALL, colour="muted")
            )
            self.marks.append(text(self.left, y, label, size=SMALL, colour="muted"))
        return y + LINE


def _arrow(x: float, y: float, length: float, colour: str) -> str:
    shape = f"M{x:.1f},{y - 4:.1f} l{length:g},4 l{-length:g},4 z"
    return element("path", d=shape, style=f"fill:{paint(colour)}")


def hatches(figure: str) -> str:
    """What the parts of a figure's bars are filled with."""
    patterns = []
    for number, shape in enumerate(_HATCHES[1:], start=1):
        drawn = element("path", d=shape, style=f"stroke:{paint('paper')}")
        tile = {"width": 6, "height": 6, "patternUnits": "userSpaceOnUse"}
        name = f"{figure}-hatch-{number}"
        patterns.append(element("pattern", drawn, id=name, stroke_width=0.7, **tile))
    return element("defs", *patterns)


class Entry(NamedTuple):
    """A name in a legend: of a dot, or with the number of its `hatch` of a part."""

    label: str
    colour: str
    opacity: float = 1.0
    hollow: bool = False
    hatch: int | None = None


def legend(
    left: float, top: float, right: float, entries: Sequence[Entry], figure: str
) -> tuple[list[str], float]:
    """The entries side by side, in lines; and the height of these."""
    marks, x, y = [], left, top
    for entry in entries:
        width = 52 + width_of(entry.label)
        if x > left and x + width > right:
            x, y = left, y + 20
        if entry.hatch is None:
            marks.append(dot(x + 10, y, entry.colour, hollow=entry.hollow))
        else:
            box, hatch = (x, y - 5, 20.0, 9.0), entry.hatch % len(_HATCHES)
            marks.append(_box(*box, paint(entry.colour), opacity=entry.opacity))
            if hatch:
                marks.append(_box(*box, f"url(#{figure}-hatch-{hatch})"))
        marks.append(text(x + 26, y, entry.label))
        x += width
    return marks, y - top + 20


def svg(marks: Iterable[str], height: float, description: str) -> str:
    """The whole figure; `description` is for a screen reader."""
    return element(
        "svg",
        *marks,
        class_="figure",
        role="img",
        aria_label=description,
        viewBox=f"0 0 {WIDTH} {math.ceil(height)}",
        xmlns="http://www.w3.org/2000/svg",
        font_size=FONT,
        style=f"font-family:var(--sans);fill:{paint('ink')}",
    )


def short(language: str) -> str:
    """A language's name in at most four characters."""
    return language if len(language) <= 4 else f"{language[:3]}."
