"""The recipes of docs/python.md on a run with two prompts."""

from itertools import chain

import pytest

from tests.support.documents import DOCS, blocks
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the recipes have computed."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(
        folder / "mine",
        12,
        ("dense", "wanda-0.6", "magnitude-0.6"),
        languages=("english", "korean"),
        tasks=("gazetteer", "gazetteer+terse"),
    )
    (text,) = (
        each.text
        for each in chain.from_iterable(map(blocks, DOCS))
        if "borda" in each.text
    )
    names = {}
    exec(text.replace("runs/mine", str(folder / "mine")), names)
    return names


def test_recipes(found):
    # each of four voters gives three checkpoints three points in all
    assert found["borda"].sum() == 4 * 3
    assert found["borda"].index[0] == "dense"

    kappa = found["overlap"]
    assert kappa.loc["dense", "wanda-0.6"] < 1
    assert kappa.loc["dense", "dense"] == pytest.approx(1.0)

    order = found["order"]
    assert list(order.index) == ["", "terse"]
    assert (order.sum(axis=1) == 6).all()

    drop = found["drop"]
    assert len(drop) > 1
    assert (drop["dense"] == 0).all()
    assert drop["magnitude-0.6"].mean() > 0
