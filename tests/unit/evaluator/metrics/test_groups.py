"""The user's groups: each is a row of every table with a row for each language, and a
policy may name it."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from evaluator import open_run
from evaluator.report.card import write_card, write_sign_off
from launch.commands.report import finish
from tests.support.runs import typed
from tests.support.schemas import valid
from tests.support.synthetic import write_run

TASKS = ("gazetteer", "gazetteer+terse")


def grouped(run, group_of):
    """Writes the groups of each question into RUN/items."""
    for path in (run / "items").glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        schema = pq.read_schema(path)
        rows = [row | {"groups": group_of(row)} for row in rows]
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups") / "run"
    names, spoken = ("dense", "wanda-0.6"), ("swahili", "russian")
    made = write_run(folder, 120, names, languages=spoken, tasks=TASKS)
    return grouped(made, lambda row: [f"spoken={row['language']}"])


def test_group_of_a_language_has_its_numbers(run):
    """In every table; fertility is a number of languages alone."""
    opened = open_run(run)
    for name in opened.tables:
        frame = opened.table(name)
        if "language" not in frame or not frame["language"].eq("swahili").any():
            continue
        rows = {}
        for cut in ("swahili", "spoken=swahili"):
            of_cut = frame[frame["language"] == cut].drop(columns="language")
            rows[cut] = of_cut.reset_index(drop=True)
        if name == "fertility":
            assert rows["spoken=swahili"].empty
        else:
            assert rows["swahili"].equals(rows["spoken=swahili"]), name
        means = frame.loc[frame["language"] == "mean", "reason"].dropna()
        assert all(each.startswith("unweighted mean over 2 of 2") for each in means)
    assert {"accuracy", "fates", "flips", "rank", "recovery"} <= {*opened.tables}
    assert "prompts" in opened.tables
    cuts = set(opened.numbers()["language"].dropna())
    assert {"spoken=swahili", "spoken=russian"} < cuts


def test_items_of_earlier_versions_have_no_groups(tmp_path):
    made = write_run(tmp_path / "run", 6, ("dense",), languages=("english",))
    (path,) = (made / "items").glob("*.parquet")
    pq.write_table(pq.read_table(path).drop_columns("groups"), path)
    opened = open_run(made)
    assert opened.items()["groups"].isna().all()
    assert set(opened.table("accuracy")["language"]) == {"all", "mean", "english"}


def test_policy_judges_a_group(run, tmp_path, monkeypatch, capsys):
    policy = tmp_path / "p.yaml"
    loose = dict.fromkeys(("max_drop", "max_mc_only", "max_lost"), 90)
    own = {"spoken=swahili": {"max_drop": 1, "max_delta_pr": 9}}
    stated = {"default": loose | {"languages": False}, "groups": own}
    policy.write_text(yaml.safe_dump(stated))
    assert typed(monkeypatch, "gate", run, "--policy", policy) == 4
    said = capsys.readouterr().out
    assert "; spoken=swahili: max_drop 1, max_delta_pr 9" in said
    assert "says less in spoken=swahili (drop of said answers in spoken=" in said
    judged = {}
    gate = json.loads((run / "gate.json").read_text())
    for check in gate["checkpoints"][0]["checks"]:
        if check["language"] == "spoken=swahili":
            judged[check["criterion"]] = check["state"]
    assert judged["open_drop"] == "beyond"
    assert judged["delta_pr"] == "within"
    assert "mc_only" not in judged
    page = write_sign_off(run, finish(run)).read_text()
    assert "Delta_PR in spoken=swahili" in page
    policy.write_text("spoken=swahil: {max_drop: 1}")
    assert typed(monkeypatch, "gate", run, "--policy", policy) == 2
    told = "unknown group of `groups` 'spoken=swahil'; did you mean 'spoken=swahili'?"
    assert told in capsys.readouterr().err


def test_what_a_policy_names_and_a_run_lacks_is_said_everywhere(
    run, tmp_path, monkeypatch, capsys
):
    policy = tmp_path / "p.yaml"
    names = {"spoken=thai": {"max_drop": 3}, "team=sales": {"max_drop": 3}}
    tasks = {"gsm8k": {"max_drop": 1}}
    policy.write_text(yaml.safe_dump({"tasks": tasks, "groups": names}))
    told = "not in this run: gsm8k, spoken=thai, team=sales"
    for form in ("table", "markdown", "junit"):
        typed(monkeypatch, "gate", run, "--policy", policy, "--format", form)
        assert told in " ".join(capsys.readouterr().out.split())
    gate = json.loads((run / "gate.json").read_text())
    assert gate["not_in_this_run"] == ["gsm8k", "spoken=thai", "team=sales"]
    assert valid("gate", json.dumps(gate))
    results = finish(run)
    assert f"; {told})" in " ".join(capsys.readouterr().out.split())
    assert json.loads((run / "gate.json").read_text()) == gate
    assert told in write_sign_off(run, results).read_text()
    assert told in (run / "report" / "index.html").read_text()
    write_card(run, tmp_path / "card.md")
    assert told in (tmp_path / "card.md").read_text()


def test_required_group(run, tmp_path):
    policy = tmp_path / "p.yaml"
    loose = dict.fromkeys(("max_drop", "max_mc_only", "max_lost"), 90)
    for name, unmet in (("spoken=swahili", 0), ("spoken=thai", 1)):
        stated = {"default": loose | {"languages": False}, "required": [name]}
        policy.write_text(yaml.safe_dump(stated))
        lines = open_run(run).gate(policy)["words"]
        why = f"requires this group: it has no records of {name!r}"
        assert lines.count(why) == unmet


def test_plan_names_a_group(tmp_path, monkeypatch, capsys):
    policy = tmp_path / "p.yaml"
    policy.write_text("team=legal: {max_drop: 3}")
    typed(monkeypatch, "gate", "--plan", 100, "--policy", policy)
    assert "max_drop 3 in team=legal: 99 questions" in capsys.readouterr().out
    typed(monkeypatch, "gate", "--plan", 100, "--policy", policy, "--json")
    planned = json.loads(capsys.readouterr().out)["tolerances"]
    assert planned[-1]["group"] == "team=legal"
