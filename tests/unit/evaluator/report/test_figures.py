"""Figures: valid SVG, coloured by the page, with marks where the numbers are."""

import math
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.table import Bars, Dots, Heat, Note, Scatter, Series
from evaluator.report.drawing import (
    FONT,
    Scale,
    even_scale,
    light,
    log_scale,
    scale_of,
    width_of,
)
from evaluator.report.figures import draw_each, draw_panels
from tests.support.records import Seen, records
from tests.support.tables import whole_inputs

ITEMS = [f"english/{i}" for i in range(8)] + [f"korean/{i}" for i in range(8)]


@pytest.fixture(scope="module")
def inputs():
    seen = {
        base: {
            key: Seen(
                i % (2 if base else 4) != 0, True, [True, False], [i % 3 == 0], 1 + i, -0.5 * i,
                hard=i != 3, aligned=1 + i // 2, fidelity=(0.1 * i * bool(base), 0.01),
            )
            for i, key in enumerate(ITEMS)
        }
        for base in (False, True)
    }  # fmt: skip
    return whole_inputs({"dense": seen[False], "<p> & q": seen[True]})


DRAWN = [table.name for table in TABLES if table.figure and not table.apart]


@pytest.mark.parametrize("name", DRAWN)
def test_each_figure_is_drawn(inputs, name):
    """That of the same numbers has the same bytes: `test_report.py`."""
    frame = TABLES[name].fill(inputs).frame
    for svg in draw_each(TABLES[name], frame):
        ids = [each.get("id") for each in ElementTree.fromstring(svg).iter()]
        assert len({*filter(None, ids)}) == len([*filter(None, ids)])
    assert draw_each(TABLES[name], frame)
    assert draw_each(TABLES[name], frame.iloc[:0]) == []


def drawn(name, inputs):
    return "".join(draw_each(TABLES[name], TABLES[name].fill(inputs).frame))


def test_figure_colours_and_labels(inputs):
    svg = drawn("accuracy", inputs)
    assert not [value for name, value in light().items() if value in svg]
    assert "var(--greedy)" in svg
    for name in re.findall(r'\bid="([^"]+)"', svg):
        assert name.startswith("figure-accuracy-")
    assert "&lt;p&gt; &amp; q" in svg
    assert not re.search(r"\d{4}-\d{2}-\d{2}T", svg)


def test_figures_without_a_base():
    seen = {key: Seen(True, True, rank=2, margin=-1.0) for key in ITEMS}
    lonely = Inputs(reduce_records(records("p", seen, base="x")))
    assert "var(--greedy)" in drawn("accuracy", lonely)
    for name in ("fates", "pr_gap", "ladder"):
        assert drawn(name, lonely) == ""


ROWS = pd.DataFrame(
    {
        "task": "t",
        "checkpoint": ["dense", "low", "gone"],
        "language": "all",
        "value": [0.5, 0.25, math.inf],
        "value_low": [0.4, -0.5, None],
        "value_high": [0.6, 0.3, None],
        "size": [1e9, 4e9, 16e9],
        "base": [True, False, False],
    }
)


def marks(panel, kind, rows=ROWS):
    """The attributes of all marks of a kind, as numbers where they are."""
    svg = ElementTree.fromstring(draw_panels([panel], rows, "name", "title"))
    found = svg.iter(f"{{http://www.w3.org/2000/svg}}{kind}")
    return [(each.attrib, "".join(each.itertext())) for each in found]


def test_a_dot_stands_at_its_value():
    """Between two ticks as its value between theirs; an infinite one is written."""
    panel = Dots("Share", (Series("value", "greedy", "said"),))
    ticks = {text: float(at["x"]) for at, text in marks(panel, "text")}
    (dense, label), (low, _) = marks(panel, "circle")
    assert float(dense["cx"]) == pytest.approx(ticks["50 %"], abs=0.1)
    assert float(low["cx"]) == pytest.approx(ticks["25 %"], abs=0.1)
    assert label == "said: 50 % (40 % to 60 %)"
    assert "\u221esaid: inf %" in ticks  # and its tooltip
    arrows = marks(panel, "path")  # the interval that goes on beyond the axis
    assert len(arrows) == 1


def test_a_value_beyond_its_axis_has_an_arrow():
    """0 has no place among factors, and an infinite value no interval."""
    rows = ROWS.assign(value=[0.0, 1.0, 64.0], value_low=None)
    panel = Dots("", (Series("value", "rank", "times"),), "amounts")
    (arrow,) = marks(panel, "path", rows)
    edge = marks(panel, "circle", rows)[0][0]["cx"]
    assert arrow[0]["d"].startswith(f"M{float(edge):.1f},")
    rows = ROWS.assign(value=math.inf, value_low=0.1, value_high=0.2)
    assert len(marks(panel, "line", rows)) == 0
    shares = marks(Dots("", panel.series), "circle", ROWS.assign(value=[1.5, -0.5, 0]))
    assert len({at["cx"] for at, _ in shares}) == 3


def test_long_and_many_texts_stay_in_the_figure():
    """Long names are short but apart, ticks have room, panels a width."""
    same = "a" * 60
    names = [
        f"{same}{middle}{same}" for middle in ("wanda", "magnitude", "\u6f22" * 99)
    ]
    rows = ROWS.assign(checkpoint=names, task="<&\x01>")
    note = Note("value", lambda value: "says more than there is room for" * 9)
    panels = [Dots("", (Series("value", "rank", "z" * 300),) * 2, note=note)] * 9
    svg = ElementTree.fromstring(draw_panels(panels, rows, "name", "title"))
    _, top, width, height = map(float, svg.get("viewBox").split())
    shown = []
    for each in svg.iter("{http://www.w3.org/2000/svg}text"):
        size, x = float(each.get("font-size", FONT)), float(each.get("x"))
        sides = {"middle": 0.5, "end": 1}
        left = x - width_of(each.text, size) * sides.get(each.get("text-anchor"), 0)
        assert 0 <= left <= left + width_of(each.text, size) <= width
        assert top <= float(each.get("y")) <= top + height
        shown.append((left, each.text))
    assert len({text for _, text in shown if text.startswith("aa")}) == 3
    ticks = [(left, text) for left, text in shown if text.endswith("%")]
    assert len(ticks) > 9
    for (left, text), (right, _) in pairwise(ticks):
        assert left + width_of(text) <= right


def test_languages_have_different_names():
    """In short, whole, or some if all would cover each other; each cell has its own."""
    panel = Heat("", "value", "greedy")
    for names, written in (
        (["english", "korean"], ["eng.", "kor."]),
        (["zho_Hans", "zho_Hant"], ["zho_Hans", "zho_Hant"]),
        ([f"language {number:03}" for number in range(300)], ["language 000"]),
    ):
        rows = pd.concat([ROWS.iloc[:2].assign(language=name) for name in names])
        texts = [text for at, text in marks(panel, "text", rows) if "text-anchor" in at]
        texts = [text for text in texts if text[:3] in ("eng", "kor", "zho", "lan")]
        assert [
            text[: len(own)] for text, own in zip(texts, written, strict=False)
        ] == written
        assert len(texts) <= 100
        cells = [text for _, text in marks(panel, "rect", rows)]
        assert cells == [f"{name}: {value}" for name in names for value in (50, 25)]


def test_titles_name_columns():
    """A column without a value leaves nothing, and a value names no column."""
    rows = ROWS.assign(model="{base}", none=None)
    panel = Dots("{model} {none}{other}", (Series("value", "greedy", "said"),))
    assert "{base} {other}" in [text for _, text in marks(panel, "text", rows)]


def test_bars_are_as_wide_as_their_shares():
    rows = ROWS.iloc[:2].assign(rest=0.5)
    panel = Bars("", {"value": ("a", "kept", 1.0), "rest": ("b", "lost", 1.0)})
    boxes = [at for at, text in marks(panel, "rect", rows) if ": " in text]
    widths = [float(box["width"]) for box in boxes]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.1)
    assert widths[2:] == pytest.approx([widths[0]] * 2, abs=0.1)
    starts = [float(box["x"]) for box in boxes]
    ends = [starts[0] + widths[0], starts[1] + widths[1]]
    assert starts[2:] == pytest.approx(ends, abs=0.1)
    none = marks(panel, "rect", rows.assign(value=[math.inf, -0.2]))
    assert len(none) == len(marks(panel, "rect", rows.assign(value=None)))
    more = rows.assign(value=3.0)  # a sum beyond 1 stays in the panel
    boxes = [at for at, text in marks(panel, "rect", more) if ": " in text]
    widths = [float(box["width"]) for box in boxes]
    assert sum(widths) < 2 * 1070
    assert widths[0] == pytest.approx(6 * widths[2], abs=0.1)


def test_points_of_a_scatter():
    """Sizes on an axis of factors are even; one name stands for equal points."""
    rows = ROWS.iloc[[0, 1, 1]].assign(value=[0.2, 0.4, 0.4], size=[1e9, 8e9, 8e9])
    panel = Scatter(
        "", "size", "value", "kept", "checkpoint", "base", "parameters", log=True
    )
    texts = [text for _, text in marks(panel, "text", rows)]
    assert {"1 B", "2 B", "5 B", "1 dense", "2 low", "25 %"} < {*texts}
    fills = [at["style"].split(";")[0] for at, _ in marks(panel, "circle", rows)]
    assert fills == ["fill:var(--paper)", *["fill:var(--kept)"] * 2]


def test_scatters_without_a_place():
    """0 and infinite values of an axis of factors are told; panels form lines."""
    rows = ROWS.assign(value=0.5, size=[0.0, 1e9, math.inf])
    panel = Scatter("", "size", "value", "kept", "checkpoint", "base", "", log=True)
    assert len(marks(panel, "circle", rows)) == 2
    texts = [text for _, text in marks(panel, "text", rows)]
    assert {"1 dense", "2 low", "3 gone", "\u221egone", "0 %"} <= {*texts}
    many = pd.concat([ROWS.assign(checkpoint=f"c{number}") for number in range(9)])
    each = replace(panel, name="language", each=True)
    titles = [at for at, text in marks(each, "text", many) if text.startswith("c")]
    assert len({at["x"] for at in titles}) == 4
    assert len({at["y"] for at in titles}) == 3


@pytest.mark.parametrize(
    ("low", "high", "most", "ticks"),
    [
        (-0.1, 1.1, 6, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-7, 3, 5, ["\u22126", "\u22124", "\u22122", "0", "2"]),
        (7990, 11010, 4, ["8,000", "9,000", "10,000", "11,000"]),
        (0.0211, 0.0289, 3, ["0.025"]),
    ],
)
def test_round_ticks(low, high, most, ticks):
    assert [*even_scale(low, high, None, most).ticks.values()] == ticks


def test_scales_of_amounts():
    """Factors apart, amounts are on a logarithmic axis, on which 0 has no place."""
    far = scale_of("amounts", [0.0, 1.0, 8.0], [0.0, 1.0, 8.0], 6)
    assert far.log
    assert [*far.ticks.values()] == ["1", "2", "5", "10"]
    assert far.share(0.0) < 0 < far.share(1.0) < far.share(8.0) < 1
    assert far.share(2.0) - far.share(1.0) == pytest.approx(far.share(8) - far.share(4))
    near = scale_of("amounts", [1.0, 1.2], [0.9, 1.3], 6)
    assert not near.log
    assert near.low < 0.9 < 1.3 < near.high
    assert [*log_scale(1.0, 1000.0).ticks.values()] == ["1", "10", "100", "1,000"]
    equal = scale_of("points", [0.01, 0.01], [0.01, 0.01], 6)
    assert equal.low < 0 < 0.1 <= equal.high


def test_a_scale_is_linear():
    assert Scale(-1.0, 3.0, {}).share(1.0) == 0.5
