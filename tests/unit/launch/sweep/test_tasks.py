"""What a task's identity is made of: two mappings of one data set are two tasks."""

import json
from pathlib import Path
from typing import Any

import pytest

from evaluator.probes.config import EvalConfig
from launch.sweep.config import SweepConfig, load_sweep
from launch.sweep.document import validated
from launch.sweep.jobs import CheckpointJob, expand
from launch.sweep.tasks import TaskPreparation
from tests.support.documents import example
from tests.support.sweeps import expanded, refused

ROWS = [{"n": number, "q": f"q{number}?", "short": f"s{number}", "long": f"l{number}"} for number in range(4)]
SHORT = {"id": "n", "question": "q", "answers": "short"}
LONG = {"id": "n", "question": "q", "answers": "long"}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return file


def config(rows: Path, **more: Any) -> EvalConfig:
    said = {"task": f"hf:{rows}", "language": "english", "fields": SHORT, "probes": ("greedy", "choice"), **more}
    return EvalConfig.model_validate(said)


def prepared(*configs: EvalConfig) -> list[str]:
    """The key of each task, prepared by one and the same preparation."""
    preparation, job = TaskPreparation(4096, {}), {"name": "x", "path": Path("x"), "model": "m", "base": None}
    return [preparation.tasks_of(CheckpointJob(tasks={"rows": each}, **job))[0].key for each in configs]


def test_two_mappings_of_one_data_set_are_two_tasks_and_take_two_names(rows):
    lenient = {**SHORT, "answers": ["short", "long"]}
    changes = ({}, {}, {"fields": LONG}, {"fields": lenient}, {"split": "train"})
    short, again, *others = prepared(*(config(rows, **each) for each in changes))
    assert short == again
    assert len({short, *others}) == 4
    for key, other in (("fields", LONG), ("language", "finnish"), ("split", "train")):
        task = {"task": f"hf:{rows}", "language": "english", "fields": SHORT}
        document = {"models": {"dense": "bundled"}, "tasks": [task, {**task, key: other}]}
        assert f"tasks: 'rows' occurs twice, with {key} " in refused(expanded, document)
        document["tasks"][1]["name"] = "other"
        [job] = expanded(document).values()
        assert list(job.tasks) == ["rows", "other"]


def test_a_task_of_which_nothing_is_said_has_the_identity_that_it_had():
    """Runs of before there were data sets are resumed: `identifying` says nothing of them."""
    config = EvalConfig(task="gazetteer", probes=("greedy",))
    assert config.said is None
    assert not {"config", "split", "revision", "language", "fields"} & config.identifying().keys()
    assert "task" not in config.identifying()
    assert config.identifying()["prompt_tokens"] == 512


def test_the_example_of_the_documentation(tmp_path):
    lines = example("your-data.md", "riddles/test.jsonl")
    (tmp_path / "sweep.yaml").write_text(example("your-data.md", "riddles.yaml"), encoding="utf-8")
    (tmp_path / "riddles").mkdir()
    (tmp_path / "riddles" / "test.jsonl").write_text(lines, encoding="utf-8")
    [job] = expand(load_sweep(tmp_path / "sweep.yaml"), tmp_path / "run", resolve=Path)
    [task] = TaskPreparation(4096, {}).tasks_of(job)
    one, other = sorted(task.questions, key=lambda question: question.item.item_id)
    assert (one.item.question, one.item.answers) == ("In the barn.\nWho barks?", ("dog",))
    assert (other.item.question, other.item.answers) == ("Who purrs?", ("cat",))
    assert sorted(one.options.texts) == ["cat", "dog"]


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        ({"task": "gazetteer", "split": "test"}, ["split: task 'gazetteer' is no data set of which that can be said"]),
        ({"task": "xquad", "fields": SHORT}, ["fields: task 'xquad' is no data set"]),
        ({"task": "hellaswag"}, ["takes the probes choice and hard_choice only, not greedy, beam,", "No ending"]),
        ({"task": "hf:org/x", "fields": {"anser": "a"}}, ["unknown key 'anser'; did you mean 'answer'?"]),
        ({"task": "hf:org/x", "fields": {"answer": 3}}, ["tasks.0.fields.answer: 3: a column's path is needed"]),
    ],
)
def test_what_cannot_be_said_of_a_task(task, parts):
    told = refused(validated, SweepConfig, {"models": {"dense": "bundled"}, "tasks": [task]}, "s.yaml")
    assert all(part in told for part in parts), told
