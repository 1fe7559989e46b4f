"""`resurface tasks` and `resurface show-prompt`: what is asked, to the letter and to
the token."""

import json
import re

import pytest

from evaluator.core.records import FORMATS
from evaluator.metrics import TABLES
from evaluator.probes import PROBES
from evaluator.tasks import TASKS
from evaluator.tasks.user_files import _FIELDS
from launch.commands.tasks import LISTS, list_names, show_prompt, tasks
from launch.commands.terminal import printed
from launch.sweep.config import bundled_recipes
from pruning.methods import METHODS
from quantising.methods import METHODS as QUANTISING
from tests.support.sweeps import refused


def told(capsys: pytest.CaptureFixture[str], **options: object) -> str:
    usual = {
        "item": None,
        "languages": None,
        "formats": "open",
        "chat": False,
        "items": 200,
        "seed": 0,
    }
    show_prompt(**{"model": "bundled", **usual, **options})  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_lists_have_registered_names(capsys):
    for kind, registered in {
        "tasks": [*TASKS],
        "probes": [*PROBES],
        "methods": [*METHODS, *QUANTISING],
    }.items():
        list_names(kind)
        out = capsys.readouterr().out
        assert out.count("\n") <= 50
        for each in registered:
            assert re.search(rf"^ {each.name}\b", out, re.MULTILINE)
            assert {*each.help.split()} <= {*out.split()}
        assert kind != "probes" or {*FORMATS} <= {*out.split()}
    assert {*LISTS["tables"]()["table"]} == {*TABLES.names}
    assert {*LISTS["recipes"]()["recipe"]} <= {*bundled_recipes()}


def test_every_task_shows_its_prompts(capsys):
    for task in TASKS:
        tasks(task.name)
        out = capsys.readouterr().out
        assert out.startswith(f"{task.name}   (--task {', '.join(task.spellings)})\n")
        assert task.help in out
        assert task.open in out
        assert ("  on the hub: " in out) == bool(task.sizes)
    tasks("jsonl")
    line = next(each for each in capsys.readouterr().out.split("\n") if "{" in each)
    assert {*json.loads(line)} == {*_FIELDS, "team"}
    list_names("probes")
    assert "beam, sample: the first 100" in capsys.readouterr().out
    tasks("hellaswag")
    columns = "ctx, activity_label, ctx_a, ctx_b, endings, label"
    out = capsys.readouterr().out
    assert (
        f"  columns: ind, ctx, endings, label\n  columns in zero-shot: ind, {columns}\n"
        in out
    )
    tasks("arc_challenge")
    out = capsys.readouterr().out
    assert "items on the hub: english 1,172" in out
    question = (
        "    | Question: Which force pulls a dropped stone to the ground?\n    |\n"
    )
    assert f"{question}    | Candidates: " in out
    assert "  * gravity\n" in out
    assert "unknown task 'arc'" in refused(tasks, "arc")
    printed("a\x1b[31mred\u202e b\tc [bold] \u0915\u094d\u200d\u0937")
    assert (
        capsys.readouterr().out
        == "a\\x1b[31mred\\u202e b\tc [bold] \u0915\u094d\u200d\u0937\n"
    )


def test_shown_prompts_have_tokens(capsys, tmp_path):
    out = told(capsys, task="gazetteer", item="swahili-0017", languages="sw")
    head, *_ = out.split("\n")
    assert head.startswith("item swahili-0017, swahili, format open: ")
    count = int(head.rsplit(": ", 1)[1].split()[0])
    pieces = out.split("of 3 tokens):\n")[1].split("\n")[0]
    assert len(pieces.split("|")) == count
    prompt = out.split("\n\n", 1)[1].split("\n\ntokens (")[0]
    assert prompt.startswith("Context: ")
    assert pieces.replace("|", "").replace("\\n", "\n") == prompt
    choice = out.split("(* is right):\n")[1].splitlines()
    assert [line[:2] for line in choice].count("* ") == 1
    assert len(choice) == 4
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"id": "1", "language": "english", "question": "Which?", "answer": "E",'
        ' "options": ["a", "b", "c", "d", "e"]}\n'
        '{"id": "2", "language": "english", "question": "Who?", "answer": "",'
        ' "options": ["a", "b"]}\n'
    )
    out = told(capsys, task=f"hf:{file}")
    assert "\nQuestion: Which?\n\nAnswer in a few words:\n" in out
    assert "Context" not in out
    assert len(out.split("(* is right):\n")[1].splitlines()) == 5
    assert "item '2': no right answer, so that it is excluded" in refused(
        told, capsys, task=f"hf:{file}", item="2"
    )


def test_examples_are_those_of_a_run(capsys, tmp_path):
    """Which has none where it asks every question."""
    row = {"language": "english", "context": "", "answers": ["1701"]}
    rows = [{**row, "id": f"q{n}", "question": f"When was {n}?"} for n in range(9)]
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = f"jsonl:{tmp_path / 'q.jsonl'}"
    message = "few_shot: 3: needs 3 english questions that are not evaluated, and there"
    assert message in refused(told, capsys, task=task, few_shot=3)
    asked = told(capsys, task=task, few_shot=3, items=6, item="q0")
    assert asked.count("Question: ") == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "gazetteer", "item": "x"}, "there is no item 'x' (the first are "),
        ({"task": "text:gazetteer"}, "a text has no items"),
        (
            {"task": "squad", "item": "sample", "formats": "one_shot"},
            "no item of the language is left as the example",
        ),
        (
            {"task": "gazetteer", "model": "nowhere"},
            "nowhere: no such checkpoint directory",
        ),
    ],
)
def test_what_cannot_be_shown(options, message, capsys):
    assert message in refused(told, capsys, **options)
