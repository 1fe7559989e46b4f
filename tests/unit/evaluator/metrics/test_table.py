"""A table is one object: registered from here alone, it is computed, written, and
shown on the page in its order."""

import dataclasses
import io
import re

import pandas as pd
import pytest
from markupsafe import escape
from rich.console import Console

from evaluator.core.errors import ResurfaceError
from evaluator.metrics import (
    TABLES,
    Inputs,
    Lack,
    Table,
    compute_tables,
    reduce_records,
)
from evaluator.metrics.columns import (
    COUNT,
    PERCENTAGE,
    POINTS,
    REASON,
    TEXT,
    Column,
    typed_frame,
)
from evaluator.report import write_report
from launch.commands.report import finish
from tests.support.records import Seen, records
from tests.support.synthetic import write_run

NAMES = TEXT("task", "checkpoint")


def _lengths(inputs: Inputs) -> list[dict]:
    return [
        {
            "task": each.task,
            "checkpoint": each.checkpoint,
            "n": len(inputs.outcomes_of(each.checkpoint, each.task)),
        }
        | {"half": 0.5, "half_low": 0.25, "half_high": 0.75, "more": -0.125}
        for each in inputs.checkpoints
    ]


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


def test_registered_table_reaches_csv_and_page(tmp_path):
    """A registered table reaches csv and page in its order."""
    with TABLES.temporarily(TOY):
        report = write_report(
            write_run(tmp_path, 4, ("dense",), languages=("english",))
        )
        assert list(report.results.tables)[-1] == "toy"
    table = pd.read_csv(report.tables["toy"])
    assert list(table) == [
        "task",
        "checkpoint",
        "n",
        "half",
        "half_low",
        "half_high",
        "more",
        "reason",
    ]
    assert table["n"].tolist() == [4]
    page = report.page.read_text(encoding="utf-8")
    section = page.split('<section id="toy">')[1].split("</section>")[0]
    assert "How many rows has the toy?" in section
    assert "50.0 %<small>25.0 to 75.0</small>" in section
    assert "−12.5 pp" in section
    assert "Not in this run: the checkpoint elsewhere." in section
    assert page.index('<section id="accuracy">') < page.index('<section id="toy">')
    assert "toy" not in TABLES


def _raises(inputs: Inputs) -> list[dict]:
    raise ZeroDivisionError("no rows\nto divide")


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (_raises, "ZeroDivisionError: no rows to divide"),
        (
            lambda inputs: [{"task": "t", "lenght": 1}],
            "ValueError: no column and no kind is declared for lenght",
        ),
        (
            lambda inputs: [{"task": "t", "half": "much"}],
            "ValueError: could not convert string to float: 'much'",
        ),
    ],
)
def test_failed_plugin_table_is_named(broken, error, tmp_path):
    """A plugin's table that fails is named and the others appear."""
    run = write_run(tmp_path, 4, ("dense",), languages=("english",))
    with TABLES.temporarily(TOY):
        write_report(run)
    console = Console(file=io.StringIO(), width=300)
    why = f"table 'toy' of plugin {__name__} failed: {error}"
    told = pytest.raises(
        ResurfaceError, match=f"^{re.escape(why)}; the report has the other tables$"
    )
    with TABLES.temporarily(dataclasses.replace(TOY, compute=broken)), told:
        finish(console, run)
    assert {each.name for each in (run / "tables").iterdir()} >= {
        "accuracy.csv",
        "headline.csv",
    }
    assert not (run / "tables" / "toy.csv").exists()  # of the call in which it worked
    page = (run / "report" / "index.html").read_text(encoding="utf-8")
    assert '<section id="accuracy">' in page
    assert escape(why) in page.split('<section id="missing">')[1]
    assert "what can it still say?" in console.file.getvalue()


def test_own_table_error_is_raised(monkeypatch, tmp_path):
    """An error in a table of our own is not hidden."""
    run = write_run(tmp_path, 4, ("dense",), languages=("english",))
    own = dataclasses.replace(TOY, compute=_raises)
    monkeypatch.setattr(_raises, "__module__", "evaluator.metrics.tables.toy")
    with TABLES.temporarily(own), pytest.raises(ZeroDivisionError):
        write_report(run)


def test_frame_has_declared_columns():
    """Rows one by one are the frame of all with exactly the declared columns."""
    text, share, count = (
        Column("text", TEXT),
        Column("share", PERCENTAGE, interval=True),
        Column("n", COUNT),
    )
    rows = [
        {"text": "a", "n": 3, "share": 0.5},
        {"text": None, "n": None, "share_low": 1},
        {"share": None},
        {},
    ]
    for some in (rows, rows[1:], rows[2:], []):
        names = ["text", "share", "share_low", "share_high", "n"]
        types = {"text": object, "n": "Int64"}
        at_once = pd.DataFrame(some, columns=names).astype(types)
        at_once["text"] = at_once["text"].replace(float("nan"), None)
        pd.testing.assert_frame_equal(
            typed_frame((text, share, count), iter(some)), at_once
        )
    outcomes = reduce_records(records("dense", {"english/1": Seen(greedy=True)}))
    for name, filled in compute_tables(Inputs(outcomes)).items():
        names = [each for column in TABLES[name].columns for each in column.names]
        assert list(filled.frame) == names
        counts = [
            column.name for column in TABLES[name].columns if column.kind is COUNT
        ]
        assert set(filled.frame[counts].dtypes.astype(str)) == {"Int64"}, name


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((*NAMES, REASON), "table 'toy' has no column n"),
        (
            (*NAMES, Column("n", COUNT), Column("n", COUNT), REASON),
            "table 'toy' names a column twice",
        ),
    ],
)
def test_wrong_columns_are_refused(columns, message):
    """Columns that make no table are refused."""
    with pytest.raises(ValueError, match=message):
        Table(
            name="toy",
            title="",
            reading="",
            needs="",
            columns=columns,
            compute=_lengths,
        )
