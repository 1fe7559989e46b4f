"""Figures: valid SVG, the same for the same numbers, coloured by the page."""

import re
from xml.etree import ElementTree

import pytest

from evaluator.metrics import TABLES, Inputs, reduce_records
from evaluator.report.figures import draw
from evaluator.report.theme import COLOURS
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
    assert not [value for value in COLOURS.values() if value in svg]
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
