"""`open_run`: tables, answers, verdicts and figures of a run, as its commands give
them, without an engine or Ray."""

import json
import re
import shutil
import subprocess
import sys
from xml.etree import ElementTree

import pandas as pd
import pytest

from evaluator import open_run
from evaluator.core.isolated import environment
from evaluator.metrics import TABLES
from evaluator.report.notebook import OpenRun
from tests.support.documents import ROOT
from tests.support.runs import finish
from tests.support.sweeps import refused
from tests.support.synthetic import HOSTILE, write_run

NAMES = ("dense", "wanda-0.6", "<img src=x onerror=alert(1)>")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> OpenRun:
    path = write_run(
        tmp_path_factory.mktemp("work") / "runs" / "demo",
        6,
        NAMES,
        languages=("english", "korean"),
    )
    finish("report", path, "--paper")
    return open_run(str(path))


@pytest.mark.more
def test_tables_and_items(run):
    assert {*run.tables} >= {"fates", "accuracy", "ladder"}
    for name in (*run.tables, "headline", "left_out"):
        frame = run.table(name)
        written = pd.read_csv(run.path / "tables" / f"{name}.csv")
        assert list(frame) == list(written)
        numbers = frame.select_dtypes("number").astype("float64")
        expected = written[list(numbers)].astype("float64")
        pd.testing.assert_frame_equal(numbers, expected)
        assert frame.select_dtypes("object").empty
    units = run.table("fates").attrs["units"]
    assert (units["n"], units["kept_rate"]) == ("count", "fraction of 1")
    assert run.table("failures").empty
    assert sorted(run.checkpoints) == sorted(NAMES)
    found = run.item("gazetteer", "english-0005")
    assert ({*found["checkpoint"]}, {*found["item_id"]}) == ({*NAMES}, {"english-0005"})
    assert found.attrs["items"][0]["question"] in {*run.items()["question"]}
    assert found.attrs["units"]["logprob"] == "nats"
    stored = pd.read_parquet(run.path / "outcomes")
    assert len(run.outcomes()) == len(stored)
    assert run.outcomes()["produced"].sum() == stored["produced"].sum()


def test_every_number_of_a_csv_is_a_cell(run):
    numbers = run.numbers()
    stored = pd.read_parquet(run.path / "tables" / "numbers.parquet")
    pd.testing.assert_frame_equal(stored.astype(numbers.dtypes), numbers)
    assert not numbers.duplicated([*numbers.columns[:9]]).any()
    assert numbers.loc[numbers["value"].isna(), "reason"].notna().all()
    for name in run.tables:
        told = run.table(name).select_dtypes(["number", "boolean"])
        cells = numbers[numbers["table"] == name]
        by_measure = dict(iter(cells.groupby("measure")))
        tests = {column.p for column in TABLES[name].columns}
        left_out = {"sparsity", "requested_sparsity", *tests}
        for column in told.columns.difference([*left_out]):
            measure, _, end = column.rpartition("_")
            if end not in ("low", "high") or measure not in by_measure:
                measure, end = column, "value"
            values = told[column].astype("float64").dropna()
            assert measure in by_measure or values.empty
            if len(values):
                assert [*by_measure[measure][end].dropna()] == [*values], column


def test_figures_of_the_paper_are_those_of_its_csv(run):
    stored = pd.read_csv(run.path / "report" / "paper.csv")
    pd.testing.assert_frame_equal(run.paper(), stored, check_dtype=False)


@pytest.mark.more
def test_gate_and_comparison_of_commands(run, tmp_path):
    finish("gate", run.path, "--max-drop", "1")
    written = json.loads((run.path / "gate.json").read_text())
    assert written == json.loads(json.dumps(run.gate(max_drop=1)))
    other = write_run(tmp_path / "other", 6, NAMES[:2], languages=("english",))
    finish("compare", run.path, other, "--csv", tmp_path / "moved.csv")
    moved = run.compare(other)
    assert list(moved) == list(pd.read_csv(tmp_path / "moved.csv"))
    assert moved["verdict"].tolist() == run.compare(open_run(other))["verdict"].tolist()


def test_running_run_shows_its_records(run, tmp_path):
    tasks = {"gazetteer": 12}
    planned = {"magnitude-0.6": tasks, "wanda-0.6": tasks, "dense": tasks, "a": {}}
    state = {"state": "running", "planned": planned}
    (tmp_path / "run.json").write_text(json.dumps(state))
    (tmp_path / "records").mkdir()
    shutil.copy(run.path / "records" / "keys.json", tmp_path / "records")
    begun = open_run(tmp_path)
    assert "running, 0 checkpoints" in begun._repr_html_()
    assert "nothing has been evaluated" in refused(begun.table, "accuracy")
    for name, why in (
        ("dense", "magnitude-0.6 on gazetteer: the run is not finished"),
        ("wanda-0.6", ""),
    ):
        key = f"records/{name}-gazetteer"
        shutil.copytree(run.path / key, tmp_path / key)
        later = open_run(tmp_path)
        if why:
            assert why in refused(later.gate)
    assert later.checkpoints == ["wanda-0.6", "dense"]
    # in the sweep's order
    assert [*later.table("accuracy")["checkpoint"].unique()] == later.checkpoints
    assert later.gate()["not_judged"][0]["checkpoint"] == "magnitude-0.6"
    assert "has no items/" in refused(later.items)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda run: run.table("fatez"), r"table 'fatez'; did you mean 'fates'\? \(known: accuracy, "),
        (lambda run: run.table("thinking"), r"table 'thinking': .* The run has: accuracy, fates, "),
        (lambda run: run.item("gazetteer", "english-5"), r"'english-0005'\? \(known: english-0000, "),
        (lambda run: run.item("gazetteer", "english-0005", "thai"), r"unknown language .*known: english"),
        (lambda run: run.gate(max_dorp=1), r"key 'max_dorp'; did you mean 'max_drop'"),
        (lambda run: run.gate(max_drop=-1), r"^gate: max_drop: -1: Input should be greater"),
        (lambda run: run.compare(run.path / "no"), r"no: not a run directory, and no log of"),
        (lambda run: open_run(run.path.with_name("dmeo")), r"dmeo: no such directory.*\(runs in .*: demo\)"),
    ],
)  # fmt: skip
def test_unknown_names_list_known_ones(run, ask, told):
    message = refused(ask, run)
    assert re.search(told, message)
    assert "\n" not in message


def test_display_and_figures(run):
    item = run.item("gazetteer", "english-0003")
    assert HOSTILE in {*item["text"]}
    assert "&lt;img src=x" in run._repr_html_()
    assert not {"<img", "<script"} & {
        *re.findall(r"<\w+", run._repr_html_() + item._repr_html_())
    }
    (figure,) = shown = run.figure("fates")
    assert ElementTree.fromstring(figure).tag.endswith("svg")
    assert shown._repr_html_() == figure
    assert "var(" not in figure  # a notebook lacks the page's colours


def test_notebook_needs_no_engine(run):
    notebook = json.loads(
        (ROOT / "examples" / "open_run.ipynb").read_text(encoding="utf-8")
    )
    cells = [each for each in notebook["cells"] if each["cell_type"] == "code"]
    assert len(cells) > 5
    assert not any(each["outputs"] or each["execution_count"] for each in cells)
    light = "import evaluator, sys\nassert 'pandas' not in sys.modules"
    heavy = "assert not {'vllm', 'ray', 'torch', 'transformers'} & {*sys.modules}"
    script = "\n".join([light, *("".join(each["source"]) for each in cells), heavy])
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=run.path.parents[1], env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
