"""The tasks that a sweep makes of `prompts:` and of data sets: their names, their
identity, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluator.core.config import validated
from evaluator.probes.config import EvalConfig
from launch.sweep import prepared_tasks as preparing
from launch.sweep.config import SweepConfig, load_sweep, rechecking
from launch.sweep.jobs import CheckpointJob, expand
from launch.sweep.prepared_tasks import TaskPreparation
from tests.support.sweeps import expanded, refused

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


def test_prompts_ask_the_same_items(tmp_path):
    [dense] = jobs(tmp_path, task(probes=["greedy", "choice"]))
    plain, terse, listed = TaskPreparation(4096, {}).tasks_of(dense)
    assert len({each.key for each in (plain, terse, listed)}) == 3
    for one, other in zip(plain.questions, terse.questions, strict=True):
        assert one.item.item_id == other.item.item_id
        assert (one.item.cluster, one.option_texts) == (
            other.item.cluster,
            other.option_texts,
        )
        assert other.item.task == "gazetteer+terse"
        assert not other.candidates
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
    ("changes", "message"),
    [
        ("prompts: {bad: '{{ contxt }} {{ question }}'}", "did you mean 'context'?"),
        (
            "prompts: {paper: '{{ context }} Q: {{ question }}'}",
            "the name of the paper's own prompts",
        ),
        ("prompts: missing.yaml", "missing.yaml: cannot read the file of prompts"),
        (
            "tasks: [{task: gazetteer, prompts: [ters]}]",
            "tasks.0.prompts: unknown prompt 'ters'; did you mean 'terse'?",
        ),
        (
            "tasks: [{task: gazetteer, formats: [open, shown]}]",
            "tasks.0.formats: 'shown' lists candidates",
        ),
        (
            "tasks: [{task: gazetteer, template: {name: a, text: '{{ question }}'}}]",
            "tasks.0.template: a template has a name",
        ),
        (
            "tasks: [{task: 'text:a.txt', probes: [perplexity], prompts: [paper]}]",
            "is a text",
        ),
        ("{models: {}, tasks: [], include: [main]}", "prompts: there are no tasks"),
    ],
)
def test_prompts_are_refused_first(tmp_path, changes, message):
    file = tmp_path / "sweep.yaml"
    whole = {"models": {"dense": "bundled"}, "prompts": PROMPTS, "tasks": [task()]}
    file.write_text(json.dumps(whole | yaml.safe_load(changes)))  # JSON is YAML
    assert message in refused(load_sweep, file)


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
    changes = (
        {},
        {},
        {"fields": LONG},
        {"fields": {**SHORT, "answers": ["short", "long"]}},
        {"split": "train"},
    )
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


def test_a_recheck_has_four_times_the_tokens_or_what_the_model_leaves(tmp_path):
    def limit(positions, **settings):
        [dense] = jobs(tmp_path, task(recheck_cut=True, **settings), prompts={})
        [made] = TaskPreparation(positions, {}).tasks_of(dense)
        return made.config.recheck_cut, made.config.recheck_limit

    greedy = {"probes": ["greedy"], "max_new_tokens": 100}
    assert limit(4096, **greedy) == (True, 400)
    assert limit(800, **greedy) == (True, 800 - 512)
    assert limit(4096, probes=["choice"]) == (False, 0)
    message = refused(limit, 600, **greedy)
    assert message.startswith("recheck_cut: 600 positions leave no room")


def test_a_sweep_rechecks_what_it_includes():
    inner = {"models": {"a": "bundled"}, "tasks": [task(name="inner")]}
    outer = {"models": {"a": "bundled"}, "tasks": [task()], "include": [inner]}
    config = rechecking(SweepConfig.model_validate(outer))
    [dense] = expand(config)
    assert {name: each.recheck_cut for name, each in dense.tasks.items()} == {
        "inner": True,
        "gazetteer": True,
    }
    assert "recheck_cut" not in SweepConfig.model_validate(inner).tasks[0].identifying()


def test_groups_of_own_questions_stand_in_their_lines():
    asked = {"task": "jsonl:q", "groups": ["team"]}
    told = refused(expanded, {"models": {"a": "bundled"}, "tasks": [asked]})
    remedy = "that can be said: each line of its file has language and groups"
    assert told.endswith(f": groups: task 'jsonl:q' is no data set of which {remedy}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": [{"task": "gazetteer", "language": "english"}]}, "be said: did you mean languages?"),
        ({"gate": {"max_drop": 1, "tasks": {"a": {}}}}, "}}}: max_drop: put it under `default`"),
    ],
)  # fmt: skip
def test_problems_name_the_users_fields(settings, message):
    document = {"models": {"a": "bundled"}, "tasks": [task()], **settings}
    told = refused(expanded, document)
    assert told.endswith(message)
    assert "Policy" not in told


def test_problems_beside_a_suite_name_their_entry():
    document = {"models": {"a": "bundled"}, "tasks": [{"suite": "zero-shot"}, task()]}
    document["tasks"][1]["itmes"] = 3
    told = refused(validated, SweepConfig, document, "s.yaml")
    assert told.startswith("s.yaml: tasks.1.itmes: unknown key 'itmes'; did you mean")
    document["tasks"][1] = task(formats=["open", "shown"], prompts=["terse"])
    document["prompts"] = {"terse": "{{ context }} {{ question }}"}
    told = refused(validated, SweepConfig, document, "s.yaml")
    assert told.startswith("s.yaml: tasks: gazetteer.formats: 'shown' lists candidates")


def test_a_sweep_file_finds_the_data_of_a_suite(tmp_path):
    """Beside itself, and whatever else the entry says goes with each task."""
    rows = Path(__file__).resolve().parents[3] / "golden" / "suite"
    (tmp_path / "data").symlink_to(rows)
    entry = {"suite": "zero-shot:data", "items": 7}
    document = {"models": {"a": "bundled"}, "tasks": [entry]}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(document))
    [dense] = expand(load_sweep(tmp_path / "s.yaml"))
    assert len(dense.tasks) == 8
    assert {each.items for each in dense.tasks.values()} == {7}
    assert dense.tasks["rte+zero-shot"].task == f"rte:{tmp_path}/data/rte"
