"""Figures as SVG: panels side by side, with scales, axes and marks.

A length is a pixel of a figure that is `WIDTH` wide. Every colour is the name of a CSS
variable of the page, so a figure is readable in its light and in its dark theme, and a
fate or probe has the same colour in figures, tables and the item view. Text stays
text. The same numbers give the same SVG."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from html import escape
from importlib.resources import files
from textwrap import wrap
from typing import Any, NamedTuple
from unicodedata import east_asian_width

from evaluator.core.errors import MORE, printable
from evaluator.metrics.columns import MINUS, rounded
from evaluator.metrics.table import Axis, amount

WIDTH = 1070
ROW = 32
LINE = 15  # of text
FONT = 12
SMALL = 10.5
_BAR = 20  # the height of one
_AXIS = 40  # from the rows to what is below the axis
_LINE = 18  # of a legend
_UPWARDS = 120  # the most room for a name that is written upwards
_TICK = 60  # the room of a tick
# of a bar's parts, as not everybody tells the colours apart: what a tile of 6 x 6 has
_HATCHES = (
    "",
    "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
    "M2,3 h1 M5,6 h1",
    "M0,0 l6,6 M0,6 l6,-6",
)


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


def element(kind: str, body: str = "", whole: str = "", **attributes: object) -> str:
    """An element around `body`, SVG, with the tooltip `whole`; `stroke_width` is the
    attribute `stroke-width`."""
    opening = [kind]
    for name, value in attributes.items():
        shown = f"{round(value, 2):g}" if isinstance(value, float) else str(value)
        opening.append(f'{name.replace("_", "-")}="{escape(shown)}"')
    title = f"<title>{escape(printable(whole))}</title>" if whole else ""
    return f"<{' '.join(opening)}>{body}{title}</{kind}>"


def width_of(label: str, size: float = FONT) -> float:
    """About the width of a text: a browser chooses the font."""
    ems = 0.0
    for letter in label:
        if letter in "mwMW%@" or east_asian_width(letter) in "WF":
            ems += 1
        else:
            ems += 0.68 if letter.isupper() else 0.6
    return size * ems


def shortened(name: str, room: float, size: float = FONT) -> str:
    """A name without its middle if it is wider than `room`."""
    if width_of(name, size) <= room:
        return name
    for half in range(int(room / size), -1, -1):
        short = name[:half] + MORE + name[len(name) - half :]
        if width_of(short, size) <= room:
            break
    return short


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


def as_amount(value: float) -> str:
    """A number of parameters or bytes in short: 600 M, 14 B."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:g} {unit}"
    return amount(value)


def as_share(value: float, unit: str = "%") -> str:
    """A share, or a difference of two, in whole percent."""
    return f"{rounded(100 * value)} {unit}"


# how a value of an axis is written; of another, as its ticks' step demands
AS_TEXT: Mapping[Axis | None, Callable[[float], str]] = {
    "rates": as_share,
    "share": as_share,
    "points": partial(as_share, unit="pp"),
}
SHARES = Scale(0, 1, {each: as_share(each) for each in (0, 0.25, 0.5, 0.75, 1)})


def even_scale(
    low: float, high: float, shown: Callable[[float], str] | None, most: int = 6
) -> Scale:
    """A linear scale with at most `most` round ticks."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= 0.999 * least)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = {}
    for number in range(first, last + 1):
        value = round(number * step, digits)
        plain = f"{value:,.{digits}f}".replace("-", MINUS)
        if not 1e-5 < step < 1e5:
            plain = as_amount(value)
        ticks[value] = plain if shown is None else shown(value)
    return Scale(low, high, ticks)


def log_scale(low: float, high: float) -> Scale:
    """A scale of factors, with ticks at 1, 2 and 5, or at powers of ten."""
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    digits = (1, 2, 5) if high / low < 100 else (1,)
    values = [digit * 10.0**p for p in range(first, last + 1) for digit in digits]
    ticks = {value: as_amount(value) for value in values if low <= value <= high}
    return Scale(low, high, ticks, log=True)


def scale_of(
    axis: Axis | None, values: Sequence[float], reach: Sequence[float], most: int = 6
) -> Scale:
    """The scale of an axis (None: of any numbers) with dots at `values`, whose
    intervals `reach` farther. Amounts of 0 have no place on it."""
    if axis == "rates":
        return Scale(min(-0.02, *values), max(1.04, *values), SHARES.ticks)
    low, high = min(reach), max(reach)
    room = 0.05 * (high - low) or 0.05 * abs(low) or 0.05
    low, high = low - room, high + room
    if axis == "share":
        low, high = min(low, 0.9), max(high, 1.05)
    elif axis in ("points", "changes"):
        # a minimum range keeps noise around zero small
        low, high = min(low, -0.05), max(high, 0.1)
    positive = [value for value in values if value > 0]
    if axis == "amounts" and positive and max(positive) >= 4 * min(positive):
        return log_scale(0.7 * min(positive), 1.4 * max(positive))
    return even_scale(low, high, AS_TEXT.get(axis), most)


class Point(NamedTuple):
    """A value in a row, its interval, and its tooltip."""

    row: int
    value: float
    low: float | None
    high: float | None
    label: str


class Entry(NamedTuple):
    """A name in a legend and its look: of dots, or with the number of its `hatch` of
    a part of bars; without a colour none. A cell has one too."""

    label: str
    colour: str = ""
    opacity: float = 1
    hatch: int | None = None
    hollow: bool = False


class Plot:
    """The inside of a panel, `width` x `height` from (`left`, `top`), of figure
    `name`. The methods add to its `marks`, which reach from `head` to `foot`."""

    def __init__(
        self, left: float, top: float, width: float, height: float, name: str = ""
    ) -> None:
        self.left, self.right, self.width = left, left + width, width
        self.top, self.bottom = top, top + height
        self.head, self.foot = top, self.bottom + _AXIS
        self.name = name
        self.scale = self.tall = Scale(0, 1, {})
        self.most = max(3, int(width / _TICK))  # ticks
        self.marks: list[str] = []

    def x(self, value: float) -> float:
        """The place of a value, at the edge for one beyond it."""
        return self.left + self.width * min(max(self.scale.share(value), 0), 1)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * self.tall.share(value)

    def row(self, number: float) -> float:
        """The height of a row's middle."""
        return self.top + ROW * (number + 0.5)

    def write(
        self,
        x: float,
        y: float,
        label: str,
        colour: str = "muted",
        *,
        size: float = FONT,
        room: float = math.inf,
        whole: str = "",
        **look: object,
    ) -> None:
        """A line of text around the height `y`. The whole is the tooltip of a short
        one."""
        if not label:
            return
        look |= {"x": x, "y": y + 0.35 * size}
        if size != FONT:
            look["font_size"] = size
        if colour != "muted":
            look["style"] = f"fill:{paint(colour)}"
        short = shortened(label, room, size)
        if not whole and short != label:
            whole = label
        self.marks.append(element("text", escape(printable(short)), whole, **look))

    def _line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, **look: Any
    ) -> None:
        look |= {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        self.marks.append(element("line", style=f"stroke:{paint(colour)}", **look))

    def _box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        whole: str = "",
        **look: object,
    ) -> None:
        look |= {"x": x, "y": y, "width": width, "height": height}
        self.marks.append(element("rect", "", whole, style=f"fill:{fill}", **look))

    def _dot(
        self, x: float, y: float, colour: str, *, hollow: bool, whole: str = ""
    ) -> None:
        style = f"fill:{paint('paper' if hollow else colour)};stroke:{paint(colour)}"
        look = {"cx": x, "cy": y, "r": 4.2, "stroke_width": 1.5}
        self.marks.append(element("circle", "", whole, style=style, **look))

    def _part(
        self, x: float, y: float, width: float, height: float, part: Entry, whole: str
    ) -> None:
        fill, box = paint(part.colour), (x, y, width, height)
        self._box(*box, fill, whole, opacity=part.opacity)
        if hatch := (part.hatch or 0) % len(_HATCHES):
            self._box(*box, f"url(#{self.name}-hatch-{hatch})", pointer_events="none")

    def title(self, title: str, width: float) -> None:
        """Write it above, in lines of this width."""
        y = self.top - 15
        for label in reversed(wrap(title, max(8, int(width / (0.64 * FONT))))):
            self.write(self.left, y, label, "ink", size=13, font_weight="bold")
            y -= LINE
        self.head = y

    def write_upwards(self, x: float, y: float, label: str, **look: Any) -> None:
        self.write(x, y, label, transform=f"rotate(-90 {x:g} {y:g})", **look)

    def name_rows(self, x: float, labels: Sequence[str], **look: Any) -> None:
        for row, label in enumerate(labels):
            self.write(x, self.row(row), label, **look)

    def name_columns(self, names: Sequence[str]) -> None:
        """Write the names of columns below them: in short, or upwards if these are
        equal or do not fit."""
        slot = self.width / len(names)
        short = [name if len(name) <= 4 else f"{name[:3]}." for name in names]
        fit = len({*short}) == len(names) and max(map(width_of, short)) <= slot
        if not fit:
            self.foot += min(max(map(width_of, names)), _UPWARDS) - LINE
        every = math.ceil(FONT / slot)  # of more, one would cover the next
        for number in range(0, len(names), every):
            x, y = self.left + (number + 0.5) * slot, self.bottom + 8
            name = names[number]
            if fit:
                self.write(x, y + 6, short[number], whole=name, text_anchor="middle")
            else:
                self.write_upwards(x, y, name, room=_UPWARDS, text_anchor="end")

    def across(self, scale: Scale, *, grid: bool = True) -> None:
        """The horizontal axis, below, with the ticks that have room. `x` follows it."""
        self.scale = scale
        self._line(self.left, self.bottom, self.right, self.bottom, "grid")
        end = -math.inf
        for value, label in scale.ticks.items():
            x, half = self.x(value), width_of(label) / 2
            if x - half > end:
                end = x + half
                self.write(x, self.bottom + 14, label, text_anchor="middle")
                if grid:
                    self.upright(value, "grid")

    def upwards(self, scale: Scale) -> None:
        """The vertical axis, left. `y` follows it."""
        self.tall = scale
        for value, label in scale.ticks.items():
            y = self.y(value)
            self._line(self.left, y, self.right, y, "grid")
            self.write(self.left - 8, y, label, text_anchor="end")

    def upright(self, value: float, colour: str = "muted") -> None:
        """A line at a value."""
        x = self.x(value)
        self._line(x, self.top, x, self.bottom, colour)

    def link(self, row: int, values: Sequence[float]) -> None:
        """A thick line from the smallest to the largest value."""
        places = [self.x(each) for each in values if math.isfinite(each)]
        if len(places) > 1:
            y = self.row(row)
            self._line(min(places), y, max(places), y, "grid", stroke_width=4)

    def interval(self, point: Point, y: float, colour: str) -> None:
        """A line, which ends in an arrow where it goes on beyond the axis."""
        if point.low is not None and point.high is not None:
            x1, x2 = self.x(point.low), self.x(point.high)
            look = {"opacity": 0.45, "stroke_width": 2, "stroke_linecap": "round"}
            self._line(x1, y, x2, y, colour, **look)
            self._arrow(point.low, y, colour)
            self._arrow(point.high, y, colour)

    def dot(
        self, value: float, y: float, colour: str, *, hollow: bool, whole: str
    ) -> None:
        """A dot at a value, with an arrow if that is beyond the axis; an infinite one
        is written at its end."""
        x = self.x(value)
        if math.isfinite(value):
            self._arrow(value, y, colour)
            self._dot(x, y, colour, hollow=hollow, whole=whole)
        elif value > 0:
            self.write(x, y, "\u221e", colour, text_anchor="end", whole=whole)
        else:
            self.write(x, y, f"{MINUS}\u221e", colour, whole=whole)

    def _arrow(self, value: float, y: float, colour: str) -> None:
        if not self.scale.low <= value <= self.scale.high:
            x, length = self.x(value), 8 if value > self.scale.high else -8
            shape = f"M{x:.1f},{y - 4:.1f} l{length},4 l{-length},4 z"
            self.marks.append(element("path", d=shape, style=f"fill:{paint(colour)}"))

    def define_hatches(self) -> None:
        """What the parts of the figure's bars are filled with."""
        for number, shape in enumerate(_HATCHES[1:], start=1):
            drawn = element("path", d=shape, style=f"stroke:{paint('paper')}")
            name, units = f"{self.name}-hatch-{number}", "userSpaceOnUse"
            size = {"width": 6, "height": 6, "stroke_width": 0.7}
            self.marks.append(
                element("pattern", drawn, "", id=name, patternUnits=units, **size)
            )

    def bar(self, row: int, start: float, share: float, part: Entry) -> None:
        """A part of a row's bar, of shares; it has a label where that has room."""
        x, y = self.x(start), self.row(row) - _BAR / 2
        width, label = self.x(start + share) - x, rounded(100 * share)
        self._part(x, y, width, _BAR, part, f"{part.label}: {label} %")
        dark, middle, half = part.opacity > 0.5, x + width / 2, width_of(label) / 2 + 1
        if 2 * half > width:
            return
        if dark and part.hatch:
            fill = paint(part.colour)
            self._box(middle - half, y + 3, 2 * half, _BAR - 6, fill)
        colour = "paper" if dark else "ink"
        self.write(middle, self.row(row), label, colour, text_anchor="middle")

    def tile(
        self, row: int, left: float, width: float, label: str, cell: Entry
    ) -> None:
        """A cell of a heat map; it has a label where that has room."""
        x, y, gap = self.left + left, self.row(row), min(2, width / 8)
        fill, whole = paint(cell.colour), f"{cell.label}: {label}"
        box = x + gap, y - 13, width - 2 * gap, 26, fill, whole
        self._box(*box, opacity=cell.opacity)
        if max(width_of(label, SMALL), FONT) <= width:
            self.write(x + width / 2, y, label, "ink", size=SMALL, text_anchor="middle")

    def legend(self, entries: Iterable[Entry], right: float) -> None:
        """Write entries at the foot, side by side, up to `right`."""
        x, y = self.left, self.foot
        for entry in entries:
            mark = 26 if entry.colour else 0
            room = right - self.left - mark
            width = mark + min(width_of(entry.label), room)
            if x > self.left and x + width > right:
                x, y = self.left, y + _LINE
            if entry.hatch is not None:
                self._part(x, y - 5, 20, 9, entry, "")
            elif mark:
                self._dot(x + 10, y, entry.colour, hollow=entry.hollow)
            self.write(x + mark, y, entry.label, "ink", room=room)
            x += width + 22
        self.foot = y + _LINE


def svg(plots: Sequence[Plot], description: str, width: float = WIDTH) -> str:
    """The whole figure; `description` is for a screen reader."""
    top, bottom = min(plot.head for plot in plots), max(plot.foot for plot in plots)
    return element(
        "svg",
        "".join(mark for plot in plots for mark in plot.marks),
        **{"class": "figure", "role": "img"},
        aria_label=description,
        viewBox=f"0 {top:g} {math.ceil(width)} {math.ceil(bottom - top)}",
        xmlns="http://www.w3.org/2000/svg",
        font_size=FONT,
        style=f"font-family:var(--sans);fill:{paint('muted')}",
    )
