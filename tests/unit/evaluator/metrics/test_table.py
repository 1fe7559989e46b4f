"""A table is one object: registered from here alone, it is computed, written, and
shown on the page in its order."""

import re
from dataclasses import replace

import pandas as pd
import pytest
from markupsafe import escape

from evaluator.core.errors import ResurfaceError
from evaluator.metrics import TABLES, Inputs, Lack, Table, empty_outcomes
from evaluator.metrics.columns import (
    COUNT,
    PERCENTAGE,
    POINTS,
    REASON,
    TEXT,
    Column,
    names_of,
    typed_frame,
)
from evaluator.metrics.table import Dots, Series
from evaluator.metrics.tables import fill
from evaluator.report import write_report
from launch.commands.report import finish
from tests.support.registries import temporarily
from tests.support.synthetic import write_run

NAMES = TEXT("task", "checkpoint")


def _lengths(inputs: Inputs) -> list[dict]:
    rows = []
    for each in inputs.checkpoints:
        items = len(inputs.outcomes_of(each.checkpoint, each.task))
        half = {"half": 0.5, "half_low": 0.25, "half_high": 0.75, "more": -0.125}
        rows.append(
            {"task": each.task, "checkpoint": each.checkpoint, "n": items} | half
        )
    return rows


TOY = Table(
    name="toy",
    title="How many rows has the toy?",
    reading="One row per checkpoint.",
    needs="any probe",
    columns=(
        *NAMES,
        Column("n", COUNT),
        Column("half", PERCENTAGE, interval=True),
        Column("more", POINTS),
        REASON,
    ),
    compute=_lengths,
    lacks=(Lack("checkpoint", "the checkpoint elsewhere", "elsewhere"),),
)


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path, 4, ("dense",), languages=("english",))


def test_registered_table_reaches_csv_and_page(run):
    with temporarily(TABLES, TOY):
        report = write_report(run)
        assert list(report.results.tables)[-1] == "toy"
    header, row = report.tables["toy"].read_text().splitlines()
    assert header == "task,checkpoint,n,half,half_low,half_high,more,reason"
    assert row == "gazetteer,dense,4,0.5,0.25,0.75,-0.125,"
    page = report.page.read_text(encoding="utf-8")
    before, section = page.split('<section id="toy">')
    section = section.split("</section>")[0]
    assert "How many rows has the toy?" in section
    assert "50.0 %<small>25.0 to 75.0</small>" in section
    assert "−12.5 pp" in section
    assert "Not in this run: the checkpoint elsewhere." in section
    assert '<section id="accuracy">' in before


def _raises(inputs: Inputs) -> list[dict]:
    raise ZeroDivisionError("no rows\nto divide")


FAILED = f"table 'toy' of plugin {__name__} failed: "


def test_failed_plugin_table_is_named(run, capsys):
    """The others appear."""
    (run / "tables").mkdir()
    (run / "tables" / "toy.csv").write_text("of the call in which it worked")
    why = f"{FAILED}ZeroDivisionError: no rows to divide"
    told = f"^{re.escape(why)}; the report has the other tables$"
    failed = temporarily(TABLES, replace(TOY, compute=_raises))
    with failed, pytest.raises(ResurfaceError, match=told):
        finish(run)
    written = {each.name for each in (run / "tables").iterdir()}
    assert {"accuracy.csv", "headline.csv"} <= written
    assert "toy.csv" not in written
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert '<section id="accuracy">' in page
    assert escape(why) in page.split('<section id="missing">')[1]
    assert "what can it still say?" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"lenght": 1}, "no column and no kind is declared for lenght"),
        ({"half": "much"}, "could not convert string to float: 'much'"),
    ],
)
def test_impossible_rows_of_plugins_are_named(row, error):
    table = replace(TOY, compute=lambda inputs: [{"task": "t"} | row])
    found = fill(table, Inputs(empty_outcomes()))
    assert (found.note, found.failed) == (f"{FAILED}ValueError: {error}", True)


def test_impossible_figure_of_a_plugin_is_named(run):
    """The figure of a table without languages is possible."""
    named = {}
    for colour in ("greedy", "mauve"):
        figure = (Dots("", (Series("half", colour, "half"),)),)
        with temporarily(TABLES, replace(TOY, figure=figure)):
            named |= write_report(run).results.failures
    assert named == {"toy": f"{FAILED}KeyError: '--mauve'"}


def test_own_table_error_is_raised(monkeypatch):
    """An error in a table of our own is not hidden."""
    monkeypatch.setattr(_raises, "__module__", "evaluator.metrics.tables.toy")
    with pytest.raises(ZeroDivisionError):
        fill(replace(TOY, compute=_raises), Inputs(empty_outcomes()))


def test_frame_has_declared_columns():
    columns = (*TEXT("text"), Column("share", PERCENTAGE, interval=True), *COUNT("n"))
    rows = [
        {"text": "a", "n": 3, "share": 0.5},
        {"text": None, "n": None, "share_low": 1},
        {"share": None},
        {},
    ]
    for some in (rows, rows[1:], rows[2:], []):
        types = {"text": object, "n": "Int64"}
        at_once = pd.DataFrame(some, columns=names_of(columns)).astype(types)
        at_once["text"] = at_once["text"].replace(float("nan"), None)
        pd.testing.assert_frame_equal(typed_frame(columns, iter(some)), at_once)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (NAMES, "table 'toy' has no column n"),
        ((*NAMES, *COUNT("n", "n")), "table 'toy' names a column twice"),
    ],
)
def test_wrong_columns_are_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        replace(TOY, columns=columns)
