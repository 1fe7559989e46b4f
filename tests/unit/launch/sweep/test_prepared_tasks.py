"""The tasks that a sweep makes of `prompts:` and of data sets: their names, their
identity, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.asking.prompts import Prompter
from evaluator.asking.templates import Wording
from evaluator.checkpoints.tokenizer import load_tokenizer
from evaluator.probes.config import EvalConfig
from evaluator.probes.planning import tokenised
from evaluator.tasks import Task
from evaluator.tasks.base import one_of_each
from launch.commands.options import eval_sweep
from launch.commands.tasks import show_prompt
from launch.sweep import prepared_tasks as preparing
from launch.sweep.config import SweepConfig, load_sweep
from launch.sweep.document import validated
from launch.sweep.jobs import CheckpointJob, expand
from launch.sweep.models import BUNDLED_MODEL
from launch.sweep.prepared_tasks import TaskPreparation
from tests.support.documents import example
from tests.support.stamps import make_item
from tests.support.sweeps import expanded, gazetteer, refused

TERSE = "{{ context }} Q: {{ question }} A:"
LISTED = "{{ question }} {{ options | join(' or ') }}?"
PROMPTS = {"terse": TERSE, "listed": LISTED}


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    """The process of its own in which templates are tried is tested by itself."""
    monkeypatch.setattr(preparing, "try_prompts", lambda template, posed: list(posed))


def jobs(tmp_path, *tasks, prompts=PROMPTS):
    config = SweepConfig.model_validate(
        {"models": {"dense": "bundled"}, "prompts": prompts, "tasks": tasks}
    )
    return expand(config, tmp_path)


def task(**more):
    return {"task": "gazetteer", "items": 5, "languages": ["english"], **more}


def test_all_that_is_rendered_is_tried(tmp_path, monkeypatch):
    """Each list of options, and the solved examples; not what is excluded anyway."""
    tried = {}
    monkeypatch.setattr(
        preparing,
        "try_prompts",
        lambda template, posed: tried.update({template.name: list(posed)}),
    )
    formats = ["open", "shown", "distractors_only"]
    listed = task(prompts=["listed"], probes=["greedy"], formats=formats, name="a")
    [dense] = jobs(
        tmp_path, listed, task(prompts=["terse"], formats=["one_shot"], name="b")
    )
    TaskPreparation(4096, {}).tasks_of(dense)
    assert sorted(len(options) for _, options in tried["listed"]) == [3] * 5 + [4] * 5
    # five questions and the example
    assert len({item.item_id for item, _ in tried["terse"]}) == 6


def test_each_prompt_poses_a_task(tmp_path):
    assert one_of_each(["b+x", "a", "a+x", "b+y"]) == ["b+x", "a"]
    with pytest.raises(ValueError, match="a plus stands between a task and a prompt"):
        Task(name="a+b", help="", read_items=lambda _: [])
    [dense] = jobs(tmp_path, task())
    assert list(dense.tasks) == ["gazetteer", "gazetteer+terse", "gazetteer+listed"]
    assert [each.template and each.template.text for each in dense.tasks.values()] == [
        None,
        TERSE,
        LISTED,
    ]
    [dense] = jobs(
        tmp_path,
        task(prompts=["listed"]),
        task(name="other", prompts=["paper", "terse"]),
    )
    assert list(dense.tasks) == ["gazetteer+listed", "other", "other+terse"]
    file = tmp_path / "prompts.yaml"
    file.write_text(example("your-data.md", "prompts.yaml"), encoding="utf-8")
    [dense] = expand(load_sweep(file), tmp_path)
    assert list(dense.tasks) == [
        "gazetteer",
        "gazetteer+terse",
        "gazetteer+reading",
        "short+terse",
    ]
    terse = Wording(dense.tasks["short+terse"].template)
    asked = make_item(context="", question="Who?")
    assert terse.whole(asked, "", ()) == "Q: Who?\nA:"
    assert terse.whole(asked, "Ann did.", ()) == "Ann did.\n\nQ: Who?\nA:"


def test_prompts_ask_the_same_items(tmp_path):
    [dense] = jobs(tmp_path, task(probes=["greedy", "choice"]))
    plain, terse, listed = TaskPreparation(4096, {}).tasks_of(dense)
    assert [each.name for each in (plain, terse, listed)] == [
        "gazetteer",
        "gazetteer+terse",
        "gazetteer+listed",
    ]
    assert len({each.key for each in (plain, terse, listed)}) == 3
    for one, other in zip(plain.questions, terse.questions, strict=True):
        assert one.item.item_id == other.item.item_id
        assert (one.item.cluster, one.option_texts) == (
            other.item.cluster,
            other.option_texts,
        )
        assert other.item.task == "gazetteer+terse"
        assert not other.candidates
    caps = {"prompt_tokens": 512, "one_shot_prompt_tokens": 512}
    prompter = Prompter(
        load_tokenizer(BUNDLED_MODEL),
        chat=False,
        template=listed.config.template,
        **caps,
    )
    question = listed.questions[0]
    plan = tokenised(question, prompter, listed.config)
    assert (
        plan.prompts["open"].text
        == f"{question.item.question} {' or '.join(question.option_texts)}?"
    )
    assert set(plan.scored) == set(question.option_texts)
    file = tmp_path / "one.jsonl"
    row = {"language": "en", "context": "", "question": "Which?", "answers": ["a"]}
    file.write_text("".join(json.dumps({"id": id, **row}) + "\n" for id in "12"))

    def prepared(prompt):
        [dense] = jobs(
            tmp_path,
            {"task": f"jsonl:{file}", "probes": ["greedy"], "prompts": [prompt]},
        )
        return TaskPreparation(4096, {}).tasks_of(dense)[0]

    assert all(question.can_pose("open") for question in prepared("terse").questions)
    assert "no other answer" in refused(prepared, "listed")


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        (
            {"prompts": {"bad": "{{ contxt }} {{ question }}"}},
            ["prompts.bad", "unknown field 'contxt'"],
        ),
        (
            {"prompts": {"paper": TERSE}},
            ["prompts.paper", "the name of the paper's own prompts"],
        ),
        ({"prompts": {"a+b": TERSE}}, ["prompts.a+b", "letters, digits"]),
        (
            {"prompts": "missing.yaml"},
            ["missing.yaml", "cannot read the file of prompts"],
        ),
        (
            {"tasks": [task(prompts=["ters"])]},
            ["tasks.0.prompts: unknown prompt 'ters'; did you mean 'terse'?"],
        ),
        ({"tasks": [task(prompts=[])]}, ["tasks.0.prompts", "at least one"]),
        (
            {"tasks": [task(formats=["open", "shown"])]},
            ["tasks.0.formats: 'shown' lists candidates"],
        ),
        (
            {"tasks": [task(formats=["one_shot"], prompts=["listed"])]},
            ["tasks.0.formats: 'one_shot'"],
        ),
        (
            {"tasks": [task(template={"name": "a", "text": TERSE})]},
            ["tasks.0.template: a template has a name"],
        ),
        (
            {
                "tasks": [
                    {
                        "task": "text:sweep.yaml",
                        "probes": ["perplexity"],
                        "prompts": ["paper"],
                    }
                ]
            },
            ["is a text"],
        ),
        (
            {"models": {}, "tasks": [], "include": ["main"]},
            ["prompts: there are no tasks"],
        ),
    ],
)
def test_what_is_refused_before_anything_starts(tmp_path, document, parts):
    file = tmp_path / "sweep.yaml"
    whole = {
        "models": {"dense": "bundled"},
        "prompts": PROMPTS,
        "tasks": [task()],
        **document,
    }
    file.write_text(json.dumps(whole))  # JSON is YAML
    message = refused(load_sweep, file)
    assert all(part in message for part in [*parts, str(tmp_path)]), message


def test_prompts_in_a_file(tmp_path):
    file = tmp_path / "prompts.yaml"
    file.write_text(json.dumps(PROMPTS))
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(
        json.dumps(
            {
                "models": {"dense": "bundled"},
                "prompts": "prompts.yaml",
                "tasks": [task()],
            }
        )
    )
    assert load_sweep(sweep).prompts == PROMPTS
    listed = gazetteer(languages="en", formats="open", probes="greedy", items=5, seed=0)
    engine = {"kind": "vllm", "dtype": "auto"}
    evaluated = eval_sweep(
        ["bundled"], base=None, task=listed, engine=engine, resources={}, prompts=file
    )
    assert evaluated.prompts == PROMPTS
    file.write_text(json.dumps({"prompts": {"bad": "{{ contxt }} {{ question }}"}}))
    told = refused(load_sweep, sweep)
    assert "prompts.yaml: prompts.bad: " in told
    assert "unknown field 'contxt'" in told
    file.write_text("[1]")
    assert "prompts.yaml: a file of prompts maps names to templates" in refused(
        load_sweep, sweep
    )


def test_show_prompt(tmp_path, capsys):
    file = tmp_path / "prompts.yaml"
    file.write_text(json.dumps({"terse": TERSE}))
    usual = {
        "item": "sample",
        "languages": None,
        "formats": "open",
        "chat": False,
        "items": 200,
        "seed": 0,
    }
    show_prompt("sciq", "bundled", **usual)
    paper = capsys.readouterr().out
    show_prompt("sciq", "bundled", **usual, prompts=file)
    both = capsys.readouterr().out
    assert both.startswith(
        "prompt paper\n" + paper.rstrip("\n") + "\n\nprompt terse\nitem "
    )
    assert " A:\n\ntokens (" in both.split("prompt terse")[1]
    show_prompt("sciq", "bundled", **usual, prompts=file, prompt="terse")
    assert (
        capsys.readouterr().out.rstrip("\n")
        == "prompt terse" + both.rstrip("\n").split("prompt terse")[1]
    )
    assert "unknown prompt 'short'" in refused(
        show_prompt, "sciq", "bundled", **usual, prompts=file, prompt="short"
    )
    shown = usual | {"formats": "shown", "prompts": file, "prompt": "terse"}
    assert "'shown' lists candidates" in refused(
        show_prompt, "sciq", "bundled", **shown
    )


def test_show_prompt_says_why_no_options(tmp_path, capsys):
    usual = {"languages": None, "chat": False, "items": 200, "seed": 0}
    row = {
        "id": "a",
        "language": "english",
        "context": "",
        "question": "?",
        "answers": ["Paris"],
    }
    file = tmp_path / "q.jsonl"
    reasons = {
        (): "no other answer of the language differs from its gold answers",
        ("PARIS", "Rome"): "its wrong option 'PARIS' is the gold answer to the grader",
    }
    for options, reason in reasons.items():
        file.write_text(json.dumps(row | {"options": options}))
        show_prompt(f"jsonl:{file}", "bundled", item="a", formats="open", **usual)
        assert (
            capsys.readouterr()
            .out.rstrip()
            .endswith(f"choice scores no options: {reason}")
        )
    file.write_text(json.dumps(row | {"options": ["Rome"]}))
    show_prompt(f"jsonl:{file}", "bundled", item="a", formats="shown", **usual)
    assert (
        capsys.readouterr()
        .out.rstrip()
        .endswith("choice scores no options: it asks in format open")
    )


# ---- data sets: two mappings of one are two tasks


ROWS = [
    {"n": number, "q": f"q{number}?", "short": f"s{number}", "long": f"l{number}"}
    for number in range(4)
]
SHORT = {"id": "n", "question": "q", "answers": "short"}
LONG = {"id": "n", "question": "q", "answers": "long"}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return file


def config(rows: Path, **more: Any) -> EvalConfig:
    said = {
        "task": f"hf:{rows}",
        "language": "english",
        "fields": SHORT,
        "probes": ("greedy", "choice"),
        **more,
    }
    return EvalConfig.model_validate(said)


def prepared(*configs: EvalConfig) -> list[str]:
    """The key of each task, prepared by one and the same preparation."""
    preparation, job = (
        TaskPreparation(4096, {}),
        {"name": "x", "path": Path("x"), "model": "m", "base": None},
    )
    return [
        preparation.tasks_of(CheckpointJob(tasks={"rows": each}, **job))[0].key
        for each in configs
    ]


def test_two_mappings_need_names(rows):
    lenient = {**SHORT, "answers": ["short", "long"]}
    changes = ({}, {}, {"fields": LONG}, {"fields": lenient}, {"split": "train"})
    short, again, *others = prepared(*(config(rows, **each) for each in changes))
    assert short == again
    assert len({short, *others}) == 4
    for key, other in (("fields", LONG), ("language", "finnish"), ("split", "train")):
        task = {"task": f"hf:{rows}", "language": "english", "fields": SHORT}
        document = {
            "models": {"dense": "bundled"},
            "tasks": [task, {**task, key: other}],
        }
        assert f"tasks: 'rows' occurs twice, with {key} " in refused(expanded, document)
        document["tasks"][1]["name"] = "other"
        [job] = expanded(document).values()
        assert list(job.tasks) == ["rows", "other"]


def test_plain_task_keeps_its_identity():
    """Runs of before there were data sets are resumed: `identifying` says nothing of
    them."""
    config = EvalConfig(task="gazetteer", probes=("greedy",))
    assert config.data_settings is None
    assert (
        not {"config", "split", "revision", "language", "fields"}
        & config.identifying().keys()
    )
    assert "task" not in config.identifying()
    assert config.identifying()["prompt_tokens"] == 512


def test_the_data_set_of_the_documentation(tmp_path):
    lines = example("your-data.md", "riddles/test.jsonl")
    (tmp_path / "sweep.yaml").write_text(
        example("your-data.md", "riddles.yaml"), encoding="utf-8"
    )
    (tmp_path / "riddles").mkdir()
    (tmp_path / "riddles" / "test.jsonl").write_text(lines, encoding="utf-8")
    [job] = expand(load_sweep(tmp_path / "sweep.yaml"), tmp_path / "run", resolve=Path)
    [task] = TaskPreparation(4096, {}).tasks_of(job)
    one, other = sorted(task.questions, key=lambda question: question.item.item_id)
    assert (one.item.question, one.item.answers) == (
        "In the barn.\nWho barks?",
        ("dog",),
    )
    assert (other.item.question, other.item.answers) == ("Who purrs?", ("cat",))
    assert sorted(one.options.texts) == ["cat", "dog"]


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        (
            {"task": "gazetteer", "split": "test"},
            ["split: task 'gazetteer' is no data set of which that can be said"],
        ),
        ({"task": "xquad", "fields": SHORT}, ["fields: task 'xquad' is no data set"]),
        (
            {"task": "hellaswag"},
            [
                "takes the probes choice and hard_choice only, not greedy, beam,",
                "No ending",
            ],
        ),
        (
            {"task": "hf:org/x", "fields": {"anser": "a"}},
            ["unknown key 'anser'; did you mean 'answer'?"],
        ),
        (
            {"task": "hf:org/x", "fields": {"answer": 3}},
            ["tasks.0.fields.answer: 3: a column's path is needed"],
        ),
    ],
)
def test_impossible_task_settings(task, parts):
    told = refused(
        validated,
        SweepConfig,
        {"models": {"dense": "bundled"}, "tasks": [task]},
        "s.yaml",
    )
    assert all(part in told for part in parts), told
