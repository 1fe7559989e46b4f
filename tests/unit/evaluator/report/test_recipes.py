"""The examples of docs/python.md and docs/records.md on a run with two prompts, which
are two tasks."""

import re
from itertools import chain

import pytest

from evaluator.report import write_report
from tests.support.documents import DOCS, blocks
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """Runs the example of the docs that holds a text; returns its names."""
    folder = tmp_path_factory.mktemp("runs")
    write_run(
        folder / "mine",
        12,
        ("dense", "wanda-0.6", "magnitude-0.6"),
        languages=("english", "korean"),
        tasks=("gazetteer", "gazetteer+terse"),
    )
    write_report(folder / "mine")
    texts = [each.text for each in chain.from_iterable(map(blocks, DOCS))]

    def run(part):
        (text,) = (each for each in texts if part in each)
        text = re.sub("runs/(mine|before|after)", str(folder / "mine"), text)
        text = text.replace('"questions", "q1"', '"gazetteer", "english-0001"')
        names = {}
        exec(text, names)
        return names

    return run


def test_recipes(example):
    found = example("borda")
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


def test_first_examples_keep_tasks_apart(example, capsys):
    example('run.table("fates")')
    assert re.search(r"gazetteer\+terse +wanda-0.6", capsys.readouterr().out)
    found = example("fates.pivot(")
    assert len(found["wide"]) == 2 * 2
    assert {"task", "format", "language"} < {*found["wide"].index.names}
    assert len(found["both"]) == len(found["numbers"])
