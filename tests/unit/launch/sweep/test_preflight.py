"""What a sweep is checked for before anything starts, and what it is prepared to."""

import json
import os
import shutil
import sys
import threading
from datetime import date
from pathlib import Path

import pytest

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.core.errors import InputError
from evaluator.engine import processor
from evaluator.engine.vllm import engine
from evaluator.engine.vllm.verify import rehearsal
from evaluator.engine.vllm.verify.rehearsal import Rehearsal
from launch.sweep import preflight
from launch.sweep.config import SweepConfig
from launch.sweep.document import validated
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Inspections, prepare
from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune
from tests.support.models import VOCABULARY, save_tiny_model
from tests.support.quantised import LAYOUTS, with_quantisation
from tests.support.run_directories import opened
from tests.support.sweeps import gazetteer, refused


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "a")
    save_tiny_model(folder / "b", seed=1, max_position_embeddings=1024)
    # of another tokenizer: without one merge
    save_tiny_model(folder / "c")
    tokenizer = json.loads(
        (folder / "c" / "tokenizer.json").read_text(encoding="utf-8")
    )
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:5]
    (folder / "c" / "tokenizer.json").write_text(
        json.dumps(tokenizer), encoding="utf-8"
    )
    return folder


def prepared(tmp_path, **document):
    return prepare(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")


def dated(tmp_path, **document):
    """The sweep's date and the tasks', and the notes on dates."""
    task = gazetteer(chat=True)
    plan = prepared(
        tmp_path, models={"m": str(tmp_path / "m")}, tasks=[task], **document
    )
    settings = plan.identity["task_settings"]["m"]["gazetteer"]
    return (
        plan.config.date,
        settings.get("date"),
        [note for note in plan.served if note.startswith("date:")],
    )


def test_read_date_is_identity(tmp_path, monkeypatch):
    """Given, or the run's first day; in the identity and run.json only where a
    template reads it."""
    template, day = (
        save_tiny_model(tmp_path / "m") / "chat_template.jinja",
        date(2026, 1, 31),
    )
    monkeypatch.setattr(preflight, "today", lambda: date(2026, 5, 6))
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    assert dated(tmp_path) == (None, None, [])
    unread = ["date: 2026-01-31: no prompt of this run reads it"]
    assert dated(tmp_path, date="2026-01-31") == (day, None, unread)
    template.write_text(
        "{{ strftime_now('%A') }}: {{ messages[0].content }}", encoding="utf-8"
    )
    read = "date: the chat template takes {} for today".format
    assert dated(tmp_path, date="2026-01-31") == (
        day,
        "2026-01-31",
        [read("2026-01-31")],
    )
    assert dated(tmp_path)[1:] == ("2026-05-06", [read("2026-05-06")])


@pytest.mark.parametrize("given", ["2026-02-30", "20260131", ""])
def test_bad_dates_are_refused(tmp_path, given):
    assert "date" in (message := refused(dated, tmp_path, date=given))
    assert "write a date as 2026-01-31" in message


def book(tmp_path, text="The town of Karo lies on the river Belu.\n" * 200):
    (tmp_path / "book.txt").write_text(text, encoding="utf-8")
    return f"text:{tmp_path / 'book.txt'}"


def test_equal_tasks_share_questions(models, tmp_path):
    tasks = [gazetteer(items=4)]
    more = [{**tasks[0], "probes": ["choice"]}]
    plan = prepared(
        tmp_path,
        include=[
            {
                "models": {"a": str(models / "a"), "c": str(models / "c")},
                "tasks": tasks,
            },
            {"models": {"a": str(models / "a")}, "tasks": more},
        ],
    )
    assert {
        name: [task.config.probes for task in asked]
        for name, asked in plan.asked.items()
    } == {"a": [("greedy", "choice")], "c": [("greedy",)]}
    items = plan.questions_by_task["gazetteer"]
    # from whoever needs them
    assert all(question.options is not None for question in items)


def test_manifest_that_lies_is_told(models, tmp_path):
    """A pruned checkpoint was trained again: the run says that its weights are
    dense."""
    pruned = tmp_path / "pruned"
    prune(PruneConfig(source=models / "a", method="magnitude", pattern="2:4"), pruned)
    shutil.copy(models / "a" / "model.safetensors", pruned)
    document = {
        "models": {"a": str(models / "a"), "tuned": str(pruned)},
        "tasks": [{"task": "gazetteer", "items": 2}],
    }
    found = prepared(tmp_path, **document, engine={"kind": "torch"})
    assert (found.dense["tuned"].pattern, found.dense["tuned"].sparsity) == (
        "unstructured",
        0.0,
    )
    (note,) = found.served
    assert note.endswith(
        "states sparsity 0.5, 2:4; the weights have 0, unstructured, and so do the"
        " tables"
    )


def test_windows_fit_every_model(models, tmp_path):
    task = {"task": book(tmp_path), "probes": ["perplexity"], "window": 4096}
    plan = prepared(
        tmp_path,
        models={name: str(models / name) for name in ("a", "b", "c")},
        prune=[{"method": "magnitude", "sparsity": 0.5}],
        tasks=[task],
    )
    a, b, c = (plan.asked[name][0] for name in ("a", "b", "c"))
    assert a is plan.asked["a-magnitude-0.5"][0]
    assert a.key == b.key != c.key
    # the shortest of the models'
    assert {task.config.window for task in (a, b, c)} == {1024}
    assert plan.engine.max_model_len == 1024
    assert max(len(question.token_ids) for question in a.questions) == 1024

    def key(**changes):
        tasks = [
            {
                "task": book(tmp_path, **changes.pop("words", {})),
                "probes": ["perplexity"],
                **changes,
            }
        ]
        return (
            prepared(tmp_path, models={"a": str(models / "a")}, tasks=tasks)
            .tasks[0]
            .key
        )

    # the text and its windows are part of the identity
    assert len({key(), key(window=100), key(words={"text": "Other words."})}) == 3


def test_prompts_need_room(models, tmp_path):
    def length(formats):
        task = {
            "task": "gazetteer",
            "items": 2,
            "probes": ["greedy"],
            "formats": formats,
        }
        settings = {
            "prompt_tokens": 100,
            "one_shot_prompt_tokens": 400,
            "max_new_tokens": 8,
        }
        return prepared(
            tmp_path, models={"a": str(models / "a")}, tasks=[task | settings]
        ).engine.max_model_len

    long = {"task": "gazetteer", "items": 2, "max_new_tokens": 4065}
    with pytest.raises(
        InputError,
        match="max_new_tokens: 4065: leaves no room for a prompt within 4096 positions",
    ):
        prepared(tmp_path, models={"a": "bundled"}, tasks=[long])
    roomy = prepared(
        tmp_path, models={"a": "bundled"}, tasks=[long | {"max_new_tokens": 2000}]
    )
    assert roomy.engine.max_model_len == 512 + 2000 + 1024
    assert (
        length(["open", "open_capped"])
        == length(["open", "one_shot"])
        == length(["open"]) + 300
    )
    task = gazetteer(items=301)
    plan = prepared(tmp_path, models={"a": str(models / "a")}, tasks=[task])
    assert list(plan.notes()) == [
        "gazetteer: english has 300 items, not 301; the run uses all"
    ]
    plan = prepared(
        tmp_path,
        models={"a": str(models / "a")},
        tasks=[{**task, "formats": ["one_shot"]}],
    )
    assert next(plan.notes()).endswith("none is left as the example of one_shot")


def asked_about(tmp_path, calibration):
    file = tmp_path / "items.jsonl"
    lines = []
    for number, (town, river) in enumerate(
        [("Karo", "Belu"), ("Tiro", "Sana")], start=1
    ):
        item = {
            "id": f"i{number}",
            "language": "english",
            "context": f"{town} lies on the {river}.",
        }
        lines.append(
            json.dumps(
                item | {"question": f"Where is {town}?", "answers": [f"on the {river}"]}
            )
            + "\n"
        )
    file.write_text("".join(lines), encoding="utf-8")
    (tmp_path / "calibration.txt").write_text(calibration, encoding="utf-8")
    return {
        "prune": [{"method": "wanda", "sparsity": 0.5}],
        "calibration": {
            "source": f"text:{tmp_path / 'calibration.txt'}",
            "samples": 2,
            "sequence_length": 16,
        },
        "tasks": [{"task": f"jsonl:{file}", "probes": ["greedy"]}],
    }


def test_calibration_excludes_contexts(models, tmp_path):
    source = {"models": {"a": str(models / "a")}}
    plan = prepared(tmp_path, **source, **asked_about(tmp_path, "Karo.\nTiro.\n"))
    assert len(plan.held_out) == 2
    document = asked_about(tmp_path, "Karo.\ntiro lies  on the Sana\n")
    found = (
        "calibration.source: passage 1 of .* is also the context of item 'i2' of task"
        " 'items'"
    )
    with pytest.raises(InputError, match=f"^wanda-0.5: {found}"):
        prepared(tmp_path, **source, **document)
    # nor can a checkpoint be asked that has seen it
    config = CalibrationConfig(source=document["calibration"]["source"], samples=2)
    made = PruneConfig(
        source=models / "a",
        method="wanda",
        sparsity=0.5,
        calibration=config,
        device="cpu",
    )
    prune(made, tmp_path / "sparse")
    with pytest.raises(InputError, match=f"^sparse: {found}"):
        prepared(
            tmp_path,
            models={"sparse": str(tmp_path / "sparse")},
            tasks=document["tasks"],
        )


def test_language_code_is_its_name(models, tmp_path):
    def identity(*languages, calibration):
        task = gazetteer(items=4, languages=languages)
        setting = {
            "method": "wanda",
            "sparsity": 0.5,
            "calibration": {"source": calibration, "samples": 2},
        }
        plan = prepared(
            tmp_path, models={"a": str(models / "a")}, prune=[setting], tasks=[task]
        )
        assert [question.item.language for question in plan.tasks[0].questions[:1]] == [
            "swahili"
        ]
        return plan.identity

    named = identity("swahili", "english", calibration="gazetteer:swahili")
    assert identity("sw", "English", calibration="gazetteer:sw") == named
    assert named["task_settings"]["a"]["gazetteer"]["languages"] == [
        "swahili",
        "english",
    ]

    def told(**task):
        return prepared(
            tmp_path,
            models={name: str(models / name) for name in ("a", "b", "c")},
            base="a",
            prune=[{"method": "magnitude", "sparsity": 0.5}],
            tasks=[{"task": "gazetteer", "items": 4, "languages": ["english"], **task}],
        ).other_tokenizer

    assert told() == {"c"}  # and not what is pruned of c, whose base is c


def test_configuration_is_identity_too(models, tmp_path):
    """Equal weights compute something else with another epsilon: no run continues
    with them."""
    shutil.copytree(models / "a", tmp_path / "a")
    task = gazetteer()
    sweep = {"models": {"a": str(tmp_path / "a")}, "tasks": [task]}
    with opened(
        tmp_path / "run", prepared(tmp_path, **sweep).identity, {}, 0
    ) as directory:
        directory.mark("finished")
    file = tmp_path / "a" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 1e-3}))
    told = refused(
        opened(tmp_path / "run", prepared(tmp_path, **sweep).identity, {}, 0).__enter__
    )
    assert "digest: the directory belongs to another sweep (models.a" in told


def test_options_are_identity(models, tmp_path):
    def plan(**options):
        task = gazetteer(probes=["choice"], **options)
        return prepared(tmp_path, models={"a": str(models / "a")}, tasks=[task])

    drawn, alike = plan(options="any"), plan()
    assert "options" not in drawn.identity["task_settings"]["a"]["gazetteer"]
    assert alike.identity["task_settings"]["a"]["gazetteer"]["options"] == "alike"
    assert alike.identity == plan(options="alike").identity


@pytest.mark.usefixtures("any_tensors")  # plain ones
def test_quantised_checkpoint_is_rehearsed(models, tmp_path, monkeypatch):
    small = shutil.copytree(models / "a", tmp_path / "small")
    with_quantisation(small, LAYOUTS["w4a16"].config)
    monkeypatch.setattr(processor, "instruction_sets", lambda: ("avx2", "avx512f"))
    for module in (rehearsal, engine):
        monkeypatch.setattr(module, "serves_cpus", lambda: True)
    found = Rehearsal(dtype="bfloat16", kernels=("SomeKernel",))
    monkeypatch.setattr(rehearsal, "rehearse", lambda *_: found)
    task = gazetteer()
    sweep = {
        "models": {"a": str(models / "a"), "small": str(small)},
        "base": "a",
        "tasks": [task],
    }
    plan = prepared(tmp_path, **sweep)
    chosen = (
        "dtype auto: this run computes every checkpoint in bfloat16, because of small"
        " (W4A16 (group 32))"
    )
    assert plan.served == (
        chosen,
        "small: W4A16 (group 32), computed in bfloat16 by SomeKernel",
    )
    assert (
        plan.engine.dtype,
        plan.identity["engine"]["dtype"],
        plan.config.engine.dtype,
    ) == ("bfloat16",) * 3
    found = Rehearsal(reason="out of order")
    told = refused(prepared, tmp_path, **sweep)
    assert "small: W4A16 (group 32) in bfloat16: out of order; it needs a GPU" in told
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert prepared(tmp_path, **sweep).served == (
        chosen,
    )  # a cluster has other processors


# ---- checkpoints are inspected several at a time, each as it is alone


def job(name: str, path: Path) -> CheckpointJob:
    return CheckpointJob(name=name, path=path, model=name, base=None, tasks={})


def test_inspections_run_at_once(tmp_path, monkeypatch):
    both, go_on, begun = threading.Barrier(3), threading.Event(), []

    def inspect(path, name, *, trust_remote_code):
        begun.append(name)
        both.wait()
        go_on.wait()
        return name

    monkeypatch.setattr(preflight, "inspect_checkpoint", inspect)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = set(threading.enumerate())
    with Inspections([job(name, tmp_path) for name in "abcd"], trust=False):
        both.wait()  # two are being read
        readers = set(threading.enumerate()) - before
    go_on.set()
    for reader in readers:
        reader.join()
    assert sorted(begun) == ["a", "b"]


def test_inspections_equal_single_ones(tmp_path, monkeypatch):
    for seed, name in enumerate("ab"):
        save_tiny_model(tmp_path / name, seed=seed)
    (tmp_path / "b" / "model.safetensors").write_bytes(b"short")
    with Inspections(trust=False) as found:
        assert found.ended() == []
        jobs = [job(name, tmp_path / name) for name in "abc"]
        for each in jobs:  # "c" is not there
            found.begin(each)
        given = []
        while len(given) < len(jobs):
            given += found.ended()
        assert sorted(each.name for each in given) == ["a", "b", "c"]
        assert found.ended() == []
        assert found.result("a") == inspect_checkpoint(tmp_path / "a")
        for name, said in (("b", "truncated"), ("c", "no such directory")):
            assert said in refused(found.result, name)
    monkeypatch.setattr(
        preflight,
        "inspect_checkpoint",
        lambda path, name, *, trust_remote_code: sys.exit(3),
    )
    # a checkpoint's own code may do so
    with Inspections([job("d", tmp_path)], trust=True) as found:
        assert "its code ended with SystemExit(3)" in refused(found.result, "d")


@pytest.mark.parametrize("value", [99999, VOCABULARY + 63])
def test_eos_outside_vocabulary_is_told(tmp_path, value):
    """Published models have rows for more tokens than their tokenizers know: the
    last id is sound."""
    save_tiny_model(tmp_path / "m", vocabulary=VOCABULARY + 64)
    (tmp_path / "m" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [0, value]})
    )
    task = gazetteer()
    notes = prepared(tmp_path, models={"m": str(tmp_path / "m")}, tasks=[task]).served
    told = f"m: eos_token_id: {value}, which ends no answer, is no id of the vocabulary"
    assert (told in notes) is (value != VOCABULARY + 63)


def test_loose_option_is_told(models, tmp_path):
    file = tmp_path / "q.jsonl"
    row = {"language": "klingon", "context": "", "question": "?", "answers": ["water"]}
    rows = [
        {**row, "id": "q1", "options": ["water", "salt water"]},
        {**row, "id": "q2", "options": ["water", "sand"]},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    task = {"task": f"jsonl:{file}", "items": 0, "probes": ["choice"]}
    notes = [*prepared(tmp_path, models={"a": str(models / "a")}, tasks=[task]).notes()]
    assert notes == [
        "q: 'klingon' is no known language: graded as one with spaces between words",
        (
            "q: 1 items have a wrong option that contains a gold answer: 'q1' has 'salt"
            " water'"
        ),
    ]
