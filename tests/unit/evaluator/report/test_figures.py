"""Figures: valid SVG, coloured by the page, with marks where the numbers are."""

import math
import re
from xml.etree import ElementTree

import pandas as pd
import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.metrics.table import Bars, Dots, Scatter, Series
from evaluator.report.drawing import Scale, even_scale, light, log_scale, scale_of
from evaluator.report.figures import draw, draw_panels
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


@pytest.mark.parametrize("name", [table.name for table in TABLES if table.figure])
def test_each_figure_is_drawn(inputs, name):
    """That of the same numbers has the same bytes: `test_report.py`."""
    frame = TABLES[name].fill(inputs).frame
    svg = draw(TABLES[name], frame)
    assert svg is not None
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert draw(TABLES[name], frame.iloc[:0]) is None


def drawn(name, inputs):
    return draw(TABLES[name], TABLES[name].fill(inputs).frame)


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
        assert drawn(name, lonely) is None


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
    assert "\u221e" in ticks
    arrows = marks(panel, "path")  # the interval that goes on beyond the axis
    assert len(arrows) == 1


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


def test_points_of_a_scatter():
    """Sizes on an axis of factors are even; one name stands for equal points."""
    rows = ROWS.iloc[[0, 1, 1]].assign(value=[0.2, 0.4, 0.4], size=[1e9, 8e9, 8e9])
    panel = Scatter(
        "", "size", "value", "kept", "checkpoint", "base", "parameters", log=True
    )
    texts = [text for _, text in marks(panel, "text", rows)]
    assert {"1 B", "2 B", "5 B", "1  dense", "2  low, low", "25 %"} < {*texts}
    fills = [at["style"].split(";")[0] for at, _ in marks(panel, "circle", rows)]
    assert fills == ["fill:var(--paper)", *["fill:var(--kept)"] * 2]


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
    equal = scale_of("places", [1.0, 1.0], [1.0, 1.0], 6)
    assert [*equal.ticks.values()] == ["1"]
    assert scale_of("points", [0.01], [0.01], 6).low < 0 < 0.1 <= equal.high


def test_a_scale_is_linear():
    assert Scale(-1.0, 3.0, {}).share(1.0) == 0.5
