"""`resurface gate`, `compare` and `export` on a made-up run: exit codes,
and what is written."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from evaluator import open_run
from evaluator.deciding.comparison import compare
from evaluator.deciding.thresholds import Thresholds
from evaluator.deciding.verdict_text import summary
from evaluator.report import write_report
from evaluator.report.notebook import side_at
from launch.commands import compare as command
from launch.status import read_status
from tests.support.runs import typed
from tests.support.schemas import valid
from tests.support.synthetic import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(
        tmp_path_factory.mktemp("gate") / "run",
        80,
        ("dense", "wanda-0.6"),
        languages=("swahili",),
    )


def test_large_drop_blocks(run, monkeypatch, capsys):
    assert typed(monkeypatch, "gate", run) == 4
    told = json.loads((run / "gate.json").read_text())
    assert told["verdict"] == "BLOCK"
    loose = (
        "--max-drop 90 --max-mc-only 90 --max-lost 90 --min-recovery 2 --max-flips 90"
        " --max-delta-pr 9 --no-per-language"
    )
    assert typed(monkeypatch, "gate", run, *loose.split()) == 0
    assert json.loads((run / "gate.json").read_text())["verdict"] == "PASS"
    assert typed(monkeypatch, "gate", run) == 0  # without options, the last policy
    assert json.loads((run / "gate.json").read_text())["verdict"] == "PASS"


@pytest.mark.more
def test_one_verdict_everywhere(run, tmp_path, monkeypatch, capsys):
    """Page, gate.json, `gate` and `report` show the last tolerances and their
    verdict."""
    copied = shutil.copytree(run, tmp_path / "run")
    page = copied / "report" / "index.html"
    page.parent.mkdir(exist_ok=True)
    page.touch()  # the gate writes it again
    loose = "--max-drop 90 --max-mc-only 91 --max-lost 92 --no-per-language"
    assert typed(monkeypatch, "gate", copied, *loose.split()) == 0
    tolerances = "max_drop 90, max_mc_only 91, max_lost 92"
    assert f"tolerances: {tolerances}\n" in capsys.readouterr().out
    of_gate = page.read_text(encoding="utf-8")
    assert typed(monkeypatch, "report", copied) == 0
    for text in (of_gate, page.read_text(encoding="utf-8")):
        assert "1 of 1 passed" in text
        assert f"Tolerances of the gate: {tolerances}." in text
    assert f"gate: 1 of 1 passed ({tolerances})" in capsys.readouterr().out


def test_report_writes_the_verdicts(run, tmp_path):
    """Also before the first `gate`, so that other programs find them after a run."""
    copied = shutil.copytree(run, tmp_path / "run")
    for name in ("gate.json", "gate.yaml"):
        (copied / name).unlink(missing_ok=True)
    results = write_report(copied).results
    told = open_run(copied).gate()
    assert json.loads((copied / "gate.json").read_text()) == told
    assert told["summary"] == summary(results.verdicts)
    assert read_status(copied).gate.summary == told["summary"]
    assert not (copied / "gate.yaml").exists()


def test_runs_own_thresholds_count(run, monkeypatch, capsys):
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(
        json.dumps(document | {"config": {"gate": {"max_lost": None, "max_drop": 3}}})
    )
    (run / "gate.yaml").unlink(missing_ok=True)
    typed(monkeypatch, "gate", run, "--max-flips", 7)
    found = json.loads((run / "gate.json").read_text())["thresholds"]
    assert (found["max_lost"], found["max_drop"], found["max_flips"]) == (None, 3, 7)
    (run / "run.json").write_text(json.dumps(document))
    # all defaults stated, max_drop_language: 5 would contradict it
    assert Thresholds(max_drop=6).model_dump(mode="json") == {"max_drop": 6}


def test_policy_of_several_runs(run, tmp_path, monkeypatch, capsys):
    """An advisory task warns in one run, a required one blocks the other, and each
    run keeps the policy."""
    first, second = (shutil.copytree(run, tmp_path / name) for name in ("a", "b"))
    document = json.loads((second / "run.json").read_text())
    document["planned"] = {"wanda-0.6": {"gazetteer": 80, "later": 40}}
    (second / "run.json").write_text(json.dumps(document))
    file = tmp_path / "gate.yaml"
    tasks = {"gazetteer": {"tier": "advisory"}, "later": {"max_drop": 1}}
    file.write_text(yaml.safe_dump({"tasks": tasks}))
    policy = ("--policy", file, "--max-drop", 3)
    assert typed(monkeypatch, "gate", first, second, *policy) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "(advisory: " in said
    assert said.endswith("WARN: 2 runs")
    for path in (first, second):
        stored = yaml.safe_load((path / "gate.yaml").read_text())
        assert stored == {"default": {"max_drop": 3.0}, "tasks": tasks}
        assert json.loads((path / "gate.json").read_text())["policy"] == stored
    file.write_text("required: [later]")
    assert typed(monkeypatch, "gate", second, "--policy", file) == 4
    assert (
        "wanda-0.6 on later: required, and not measured (the policy"
        in capsys.readouterr().out
    )
    file.write_text("tasks: {gazeteer: {max_drop: 1}}")
    assert typed(monkeypatch, "gate", first, "--policy", file) == 2
    told = "unknown task of `tasks` 'gazeteer'; did you mean 'gazetteer'?"
    assert told in capsys.readouterr().err
    assert yaml.safe_load((first / "gate.yaml").read_text())["tasks"] == tasks


def test_missing_record_is_no_pass(run, tmp_path, monkeypatch, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    (copied / "gate.yaml").unlink(missing_ok=True)
    document = json.loads((copied / "run.json").read_text())
    document["planned"] = {"wanda-0.6": {"later": 40}}
    failed = {"checkpoint": "wanda-0.6", "task": "gazetteer", "stage": "load"}
    (copied / "run.json").write_text(json.dumps(document))
    loose = "--max-drop 90 --max-mc-only 90 --max-lost 90 --no-per-language"
    assert typed(monkeypatch, "gate", copied, *loose.split()) == 0
    assert json.loads((copied / "gate.json").read_text())["verdict"] == "WARN"
    assert (
        "not judged: wanda-0.6 on later: the run is not finished: it has no record"
        in capsys.readouterr().out
    )
    document["failures"] = [failed | {"reason": "truncated"}]
    (copied / "run.json").write_text(json.dumps(document))
    assert typed(monkeypatch, "gate", copied) == 0
    told = "not judged: wanda-0.6 on gazetteer: all but the records that it has: trunc"
    assert told in capsys.readouterr().out
    document["planned"] = {"dense": {"later": 40}, "int4": {"gazetteer": 80}}
    (copied / "run.json").write_text(json.dumps(document | {"failures": []}))
    shutil.rmtree(next((copied / "records").rglob("*wanda-0.6*")))
    assert typed(monkeypatch, "gate", copied) == 2
    told = "run: int4 on gazetteer: the run is not finished: it has no record; repeat"
    assert told in capsys.readouterr().err


def test_plan_needs_no_run(monkeypatch, capsys):
    assert typed(monkeypatch, "gate", "--plan", 150) == 0
    said = capsys.readouterr().out
    assert "max_drop 2: 149 questions if no answer changes" in said
    typed(monkeypatch, "gate", "--plan", 75, "--max-drop", 3.9)
    said = capsys.readouterr().out
    assert "max_drop 3.9: 76 questions if" in said
    assert "changes (75 decide 4.0), 233 if" in said
    assert "as many gained (75 decide 8." in said
    typed(monkeypatch, "gate", "--plan", 150, "--max-drop", 0.001, "--max-flips", 5)
    said, told = capsys.readouterr()
    assert "max_drop 0.001: more than 100,000 questions if no answer ch" in said
    assert "not planned: max_flips\n" in said
    assert "max_drop is 0.001 of 100: 0.1 if meant as a share" in told
    typed(monkeypatch, "gate", "--plan", 150, "--max-drop", 0)
    said, told = capsys.readouterr()
    assert "max_drop 0: no number of questions if no answer changes (150 de" in said
    assert not told
    assert typed(monkeypatch, "gate", "--plan", 150, "--json") == 0
    assert valid("plan", capsys.readouterr().out)["questions"] == 150
    assert typed(monkeypatch, "gate") == 2
    assert "RUN is missing" in capsys.readouterr().err


def test_trial_writes_nothing(run, tmp_path, monkeypatch, capsys):
    copied = shutil.copytree(run, tmp_path / "run")
    document = json.loads((copied / "run.json").read_text())
    document["planned"] = {"wanda-0.6": {"gazetteer": 1500}}
    (copied / "run.json").write_text(json.dumps(document))
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    typed(monkeypatch, "gate", copied, "--max-drop", "90", "--try")
    assert {f: f.read_bytes() for f in copied.rglob("*") if f.is_file()} == before
    said = capsys.readouterr().out
    assert "unfinished: " in said
    assert " of 1,500 items" in said
    assert "from now on" not in said


def test_compare_two_runs(run, tmp_path, monkeypatch, capsys):
    csv = tmp_path / "moved.csv"
    assert (
        typed(
            monkeypatch, "compare", run, run, "--pair", "dense=wanda-0.6", "--csv", csv
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "weights: digest of de | digest of wa" in said
    assert "Moved by more than noise: dense open, dense exact_match, " in said
    assert "(paired tests, Holm" in said
    assert set(pd.read_csv(csv)["checkpoint_b"]) == {"wanda-0.6"}
    assert typed(monkeypatch, "compare", run, run, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["moved"] == 0


def test_compare_names_what_differs_and_its_test(run, capsys):
    """Other options are no other prompt, and one model twice has no family of Holm."""
    side = side_at(run)
    side = replace(side, answers=side.answers.assign(prompt="one"))
    for measures, told in (
        (["choice"], "prompts or options differ on up to 79 items of choice\n"),
        (["open"], "\nprompts differ on up to 78 items of open\n"),
    ):
        here = side.answers["measure"].isin(measures)
        prompts = side.answers["prompt"].mask(here, "another")
        other = side.answers.assign(prompt=prompts, value=1 - side.answers["value"])
        command._print(compare(side, replace(side, answers=other)))
        said = capsys.readouterr().out
        assert told in said
        assert "(paired tests; B minus A)" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("compare nowhere nowhere", "nowhere: no such file or directory"),
        ("compare . .", "not a run directory"),
        ("compare a.jsonl .", "a.jsonl: not a run directory, and no log of lm-eval"),
        ("compare . . --pair dense", "--pair: 'dense' is not of the form A=B"),
        ("compare . . --pair a=b --pair a=c", "--pair: 'a' is in two pairs"),
        ("gate a.jsonl misspelled", "error: misspelled: no such"),
        ("export . --to card --out new", "error: .: not a run directory"),
        (
            "export . --to car --out new",
            "unknown --to format 'car'; did you mean 'card'?",
        ),
        ("export alone --to card --out alone", "--out: alone exists; name another"),
        ("gate alone", "no checkpoint names a base"),
        ("gate alone --max-drop 101", "error: resurface gate: --max-drop: 101"),
        ("gate alone --format xml", "unknown --format 'xml'"),
    ],
)
def test_impossible_call_is_one_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").touch()
    if "alone" in arguments:
        write_run(tmp_path / "alone", 4, ("dense",))
    assert typed(monkeypatch, *arguments.split()) == 2
    assert message in capsys.readouterr().err


LOGS = Path(__file__).parents[3] / "data" / "logs"
NEW = LOGS / "lm-eval-0.4.13" / "one-rank"


def test_gate_on_logs(tmp_path, monkeypatch, capsys):
    """Nothing is written beside another program's log."""
    log = tmp_path / "candidate"
    shutil.copytree(NEW / "candidate", log)
    (samples,) = log.glob("samples_local_choices*")
    wrong = samples.read_text().replace('"acc": 1.0', '"acc": 0.0')
    samples.write_text(wrong)
    assert typed(monkeypatch, "gate", NEW / "base", log) == 4
    told = " ".join(capsys.readouterr().out.split())
    assert "candidate on local_choices acc: not usable" in told
    assert "not in these logs: known answers picked only" in told
    assert typed(monkeypatch, "gate", NEW / "base", log, "--format", "json") == 4
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "BLOCK"
    assert {row["measure"] for row in document["measures"]} >= {"acc", "acc_norm"}
    policy = tmp_path / "gate.yaml"
    policy.write_text("tasks: {local_choices: {tier: advisory}}")
    assert typed(monkeypatch, "gate", NEW / "base", log, "--policy", policy) == 0
    policy.write_text("tasks: {other: {max_drop: 1}}")
    assert typed(monkeypatch, "gate", NEW / "base", log, "--policy", policy) == 4
    assert "; not in this run: other\n" in capsys.readouterr().out
    policy.write_text("tasks: {local_choice: {max_drop: 1}}")
    assert typed(monkeypatch, "gate", NEW / "base", log, "--policy", policy) == 2
    assert "unknown task of `tasks` 'local_choice'" in capsys.readouterr().err
    assert len([*log.iterdir()]) == 3
    samples.unlink()
    next(log.glob("samples_local_sums*")).unlink()
    assert typed(monkeypatch, "gate", NEW / "base", log) == 2
    assert "repeat lm-eval with --log_samples" in capsys.readouterr().err
