"""What `--json` prints fits the schemas in docs/schemas/, which are fresh."""

import json
import math

import jsonschema
import pytest

from launch.documents import Checked, line_of
from tests.support.runs import typed
from tests.support.schemas import FOLDER, schemas, valid
from tests.support.synthetic import write_run

JOB = "bundled --method rtn --scheme W8A8 --out x --dry-run"
SWEEP = """
models: {dense: bundled}
prune: [{method: magnitude, sparsity: [0.5, 0.6]}]
tasks: [{task: gazetteer, languages: [english], items: 4, probes: [greedy, choice]}]
controls: none
"""


def test_schemas_are_fresh():
    written = {file.stem: json.loads(file.read_text()) for file in FOLDER.iterdir()}
    assert written == schemas(), "run `python -m tests.support.schemas`"
    for schema in written.values():
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return write_run(folder, 12, ("dense", "wanda-0.6"), languages=("english",))


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("command", "schema", "fields"),
    [
        ("list tasks", "names", {"task"}),
        ("tasks xquad", "names", {"task"}),
        ("list probes", "names", {"probe", "format"}),
        ("list methods", "names", {"method to prune", "method to quantise"}),
        ("list tables", "names", {"table"}),
        ("list recipes", "names", {"recipe"}),
        ("sweep one_shot --explain", "explain", None),
        ("eval bundled --task gazetteer --dry-run", "dry-run", None),
        (f"compress {JOB}", "dry-run-job", None),
        ("prune bundled --method magnitude --sparsity 0.5 --out x --dry-run", "dry-run-job", None),
        ("status RUN", "status", None),
        ("compare RUN RUN", "compare", None),
    ],
)  # fmt: skip
def test_stdout_is_json_alone(run, monkeypatch, capsys, command, schema, fields):
    assert typed(monkeypatch, *command.replace("RUN", str(run)).split(), "--json") == 0
    document = valid(schema, capsys.readouterr().out)
    if fields is not None:
        assert document["names"].keys() == fields
        assert all(all(names.values()) for names in document["names"].values())


def test_dry_run_counts(sweep_file, monkeypatch, capsys):
    assert typed(monkeypatch, "sweep", sweep_file, "--dry-run", "--json") == 0
    document = valid("dry-run", capsys.readouterr().out)
    assert typed(monkeypatch, "sweep", sweep_file, "--dry-run") == 0
    table = capsys.readouterr().out
    names = [row["checkpoint"] for row in document["checkpoints"]]
    assert names == ["dense", "magnitude-0.5", "magnitude-0.6"]
    for row in document["checkpoints"]:
        assert row["checkpoint"] in table
        assert f"{row['work']['requests']:,}" in table


def test_numbers_that_json_lacks():
    check = Checked(
        check="a",
        passed=False,
        n=0,
        failed=0,
        changed=math.nan,
        measured={"largest": -math.inf, "mean": math.nan},
        allowed={"largest": math.inf, "mean": 0.0},
    )
    written = json.loads(line_of(check))
    assert written["allowed"] == {"largest": "Infinity", "mean": 0.0}
    assert written["measured"] == {"largest": "-Infinity", "mean": None}
    assert written["changed"] is None


def test_last_verdict_is_shown(run, monkeypatch, capsys):
    """By `gate`, which prints its file, and by `status`; a damaged file shows none."""
    assert typed(monkeypatch, "gate", run, "--json") in (0, 4)
    told = json.loads(capsys.readouterr().out)
    assert valid("gate", json.dumps(told))["checkpoints"][0]["checks"]
    assert json.loads((run / "gate.json").read_text()) == told
    assert typed(monkeypatch, "gate", run, run, "--json") in (0, 4)
    document = json.loads(capsys.readouterr().out)
    assert valid("gates", json.dumps(document))["verdict"] == told["verdict"]
    assert typed(monkeypatch, "status", run, "--json") == 0
    shown = valid("status", capsys.readouterr().out)["gate"]
    assert shown == {name: told[name] for name in ("verdict", "summary")}
    (run / "gate.json").write_text("{}")
    assert typed(monkeypatch, "status", run, "--json") == 0
    assert valid("status", capsys.readouterr().out)["gate"] is None


def test_report_has_the_headline(run, monkeypatch, capsys):
    """The last test of the run, as a gate writes the page of a report again."""
    assert typed(monkeypatch, "report", run, "--json") == 0
    shown = capsys.readouterr()
    document = valid("report", shown.out)
    names = [row["checkpoint"] for row in document["headline"]]
    assert names == ["dense", "wanda-0.6"]
    assert document["verdicts"][0]["checkpoint"] == "wanda-0.6"
    assert "what can it still say?" in shown.err  # for people
