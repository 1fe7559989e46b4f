"""What a sweep is checked for before anything starts, and what it is prepared to."""

import json
import random
import shutil
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.served import ServedModel
from evaluator.core.config import validated
from evaluator.core.errors import InputError
from evaluator.engine import processor
from evaluator.engine.vllm import engine, quantised
from launch.sweep import preflight
from launch.sweep import preflight_checks as checks
from launch.sweep.config import SweepConfig
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Inspections, prepare
from pruning.config import CalibrationConfig, PruneConfig
from pruning.run import prune
from quantising.methods import llm_compressor
from tests.support.models import VOCABULARY, save_tiny_model
from tests.support.pruning import magnitude
from tests.support.quantised import LAYOUTS, with_quantisation
from tests.support.sweeps import refused


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


def prepared(tmp_path, text, **how):
    document = yaml.safe_load(text)
    config = validated(SweepConfig, document, "s.yaml")
    return prepare(config, tmp_path / "run", **how)


def aside(plan):
    """Why checkpoints are set aside, by name."""
    return {failure.checkpoint: failure.reason for failure in plan.unusable}


def dated(tmp_path, more=""):
    """The sweep's date and the tasks', and the notes on dates."""
    task = "task: gazetteer, items: 2, probes: [greedy], chat: true"
    plan = prepared(
        tmp_path, f"models: {{m: {tmp_path}/m}}\ntasks: [{{{task}}}]\n{more}"
    )
    settings = plan.identity["task_settings"]["m"]["gazetteer"]
    notes = [note for note in plan.findings if note.startswith("date:")]
    return plan.config.date, settings.get("date"), notes


def test_read_date_is_identity(tmp_path, monkeypatch):
    """Given, or the run's first day; in the identity and run.json only where a
    template reads it."""
    template = save_tiny_model(tmp_path / "m") / "chat_template.jinja"
    day, given = date(2026, 1, 31), "date: 2026-01-31"
    monkeypatch.setattr(preflight, "today", lambda: date(2026, 5, 6))
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    unread = ["date: 2026-01-31: no prompt of this run reads it"]
    assert dated(tmp_path, given) == (day, None, unread)
    template.write_text(
        "{{ strftime_now('%A') }}: {{ messages[0].content }}", encoding="utf-8"
    )
    read = "date: the chat template takes {} for today".format
    assert dated(tmp_path, given) == (day, "2026-01-31", [read("2026-01-31")])
    assert dated(tmp_path)[1:] == ("2026-05-06", [read("2026-05-06")])


@pytest.mark.parametrize(
    ("line", "settings", "told"),
    [
        ({"answers": "x"}, "", "line 1: field 'answers' must be a list"),
        ({"answers": ["a dog"]}, "grader: number", "'a dog' is no number"),
        ({}, "languages: [german]", "unknown language of task 'q': 'german'"),
        ({}, "few_shot: 2", "few_shot: 2: needs 2 english questions"),
    ],
)
def test_bad_questions_are_refused_before_weights_are_read(
    models, tmp_path, monkeypatch, line, settings, told
):
    known = {"id": "1", "language": "english", "context": "", "question": "Who?"}
    known["answers"] = ["1"]
    (tmp_path / "q.jsonl").write_text(json.dumps(known | line))
    monkeypatch.delattr(preflight, "_read_checkpoints")
    task = f"task: 'jsonl:{tmp_path}/q.jsonl', probes: [greedy], {settings}"
    text = f"models: {{a: {models}/a}}\ntasks: [{{{task}}}]"
    assert told in refused(prepared, tmp_path, text)


def test_unknown_group_of_the_policy_is_refused(models, tmp_path, monkeypatch):
    known = {"id": "1", "language": "english", "context": "", "question": "Who?"}
    known |= {"answers": ["1"], "groups": ["team"], "team": "legal"}
    (tmp_path / "q.jsonl").write_text(json.dumps(known))
    text = f"""
    models: {{a: {models}/a}}
    tasks: [{{task: "jsonl:{tmp_path}/q.jsonl", probes: [greedy]}}]
    gate: {{groups: {{team=legl: {{max_drop: 3}}}}}}
    """
    with monkeypatch.context() as patched:
        patched.delattr(preflight, "_read_checkpoints")
        told = refused(prepared, tmp_path, text)
    assert told.startswith("gate: unknown group of `groups` 'team=legl'; did you mean")
    assert prepared(tmp_path, text.replace("legl", "legal")).tasks


def test_manifest_that_lies_is_told(models, tmp_path):
    """A pruned checkpoint was trained again: the run says that its weights are
    dense."""
    pruned = tmp_path / "pruned"
    prune(PruneConfig(source=models / "a", method="magnitude", pattern="2:4"), pruned)
    shutil.copy(models / "a" / "model.safetensors", pruned)
    found = prepared(
        tmp_path,
        f"""
        models: {{a: {models}/a, tuned: {pruned}}}
        tasks: [{{task: gazetteer, items: 2}}]
        engine: {{kind: torch}}
        """,
    )
    tuned = found.dense["tuned"]
    assert (tuned.pattern, tuned.sparsity) == ("unstructured", 0.0)
    (note,) = found.findings
    assert note.endswith(
        "states sparsity 0.5, 2:4; the weights have 0, unstructured, and so do the"
        " tables"
    )


def test_windows_fit_every_model(models, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("The town of Karo lies on the river Belu.\n" * 200)
    task = f"task: 'text:{book}', probes: [perplexity]"
    plan = prepared(
        tmp_path,
        f"""
        models: {{a: {models}/a, b: {models}/b, c: {models}/c}}
        prune: [{{method: magnitude, sparsity: 0.5}}]
        tasks: [{{{task}, window: 4096}}]
        """,
    )
    a, b, c = (plan.asked[name][0] for name in ("a", "b", "c"))
    assert a is plan.asked["a-magnitude-0.5"][0]
    assert a.key == b.key != c.key
    # the shortest of the models'
    assert {task.config.window for task in (a, b, c)} == {1024}
    assert plan.engine.max_model_len == 1024
    assert max(len(question.token_ids) for question in a.questions) == 1024

    def key(more=""):
        text = f"models: {{a: {models}/a}}\ntasks: [{{{task}{more}}}]"
        return prepared(tmp_path, text).tasks[0].key

    # the text and its windows are part of the identity
    keys = {key(), key(", window: 100")}
    book.write_text("Other words.")
    assert len({*keys, key()}) == 3


def test_prompts_need_room(tmp_path):
    def longest(settings):
        task = f"task: gazetteer, items: 2, {settings}"
        text = f"models: {{a: bundled}}\ntasks: [{{{task}}}]"
        return prepared(tmp_path, text).engine.max_model_len

    assert longest("max_new_tokens: 2000") == 512 + 2000 + 1024
    told = refused(longest, "max_new_tokens: 4065")
    assert told.startswith(
        "a: max_new_tokens: 4065: leaves no room for a prompt within 4096 positions"
    )
    caps = "prompt_tokens: 100, one_shot_prompt_tokens: 400, formats: [open{}]".format
    plain = longest(caps(""))
    assert longest(caps(", open_capped")) == longest(caps(", one_shot")) == plain + 300


def test_data_that_lack_something_are_told(models, tmp_path):
    """What is not asked, what no group has, and what a suite cannot decide."""
    known = {"language": "english", "context": "", "question": "Who?", "answers": ["1"]}
    rows = [known | {"id": str(at)} for at in range(4)]
    for row, team in zip(rows, ("legal", "Legal ", "sales"), strict=False):
        row |= {"groups": ["team"], "team": team}
    rows[0]["answers"] = []
    (tmp_path / "q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    choices = {"text": ["dog", "cat", "dog"], "label": ["A", "B", "C"]}
    row = {"id": "r", "question": "Who barks?", "choices": choices, "answerKey": "A"}
    (tmp_path / "arc_easy").mkdir()
    (tmp_path / "arc_easy" / "test.jsonl").write_text(json.dumps(row))
    notes = prepared(
        tmp_path,
        f"""
        models: {{a: {models}/a}}
        tasks:
          - {{task: "jsonl:{tmp_path}/q.jsonl", items: 4, probes: [greedy]}}
          - {{task: "arc_easy:{tmp_path}/arc_easy", suite: zero-shot, items: 1}}
        """,
    ).notes()
    assert list(notes)[:4] == [
        (
            "q: 1 of 4 items have no gold answer that could be found in an output: they"
            " are not asked",
            False,
        ),
        ("q: 1 of 4 items have no team: they are in no group of it", False),
        ("q: 'team=Legal' and 'team=legal' are two groups", True),
        (
            "arc_easy+zero-shot: a wrong option equals the gold one in 1 item, as 'r':"
            " picked counts a tie as wrong, table suite as right",
            True,
        ),
    ]


def test_fewer_items_are_told(models, tmp_path):
    """Only a lost example is a warning."""
    note = "gazetteer: english has 300 items, not 301; the run uses all"
    for formats, lost in (
        ("open", ""),
        ("open, one_shot", "; none is left as the example of one_shot"),
    ):
        notes = prepared(
            tmp_path,
            f"""
            models: {{a: {models}/a}}
            tasks:
              - task: gazetteer
                items: 301
                languages: [english]
                formats: [{formats}]
            """,
        ).notes()
        assert next(notes) == (note + lost, bool(lost))


ITEMS = """\
{"id": "i1", "language": "english", "context": "Karo lies on the Belu.", "question": "Where?", "answers": ["Belu"]}
{"id": "i2", "language": "english", "context": "Tiro lies on the Sana.", "question": "Where?", "answers": ["Sana"]}
"""


def test_calibration_excludes_contexts(models, tmp_path):
    items, text = tmp_path / "items.jsonl", tmp_path / "calibration.txt"
    items.write_text(ITEMS)
    tasks = f"tasks: [{{task: 'jsonl:{items}', probes: [greedy]}}]"
    sweep = f"""
models: {{a: {models}/a}}
prune: [{{method: wanda, sparsity: 0.5}}]
calibration: {{source: "text:{text}", samples: 2, sequence_length: 16}}
{tasks}
"""
    text.write_text("Karo.\nTiro.\n")
    assert len(prepared(tmp_path, sweep).held_out) == 2
    text.write_text("Karo.\ntiro lies  on the Sana\n")
    same = "is also the context of item 'i2' of task 'items'"
    told = aside(prepared(tmp_path, sweep))["wanda-0.5"]
    assert told.startswith("calibration.source: passage 1 of ")
    assert same in told
    # nor can a checkpoint be asked that has seen it
    made = PruneConfig(
        source=models / "a",
        method="wanda",
        sparsity=0.5,
        calibration=CalibrationConfig(source=f"text:{text}", samples=2),
        device="cpu",
    )
    prune(made, tmp_path / "sparse")
    told = refused(prepared, tmp_path, f"models: {{s: {tmp_path}/sparse}}\n{tasks}")
    assert told.startswith("s: calibration.source: passage 1 of ")
    assert same in told


def test_language_code_is_its_name(models, tmp_path):
    def identity(languages, calibration):
        plan = prepared(
            tmp_path,
            f"""
            models: {{a: {models}/a}}
            prune: [{{method: wanda, sparsity: 0.5}}]
            calibration: {{source: "gazetteer:{calibration}", samples: 2}}
            tasks: [{{task: gazetteer, items: 4, languages: [{languages}]}}]
            """,
        )
        assert plan.tasks[0].questions[0].item.language == "swahili"
        return plan.identity

    named = identity("swahili, english", "swahili")
    assert identity("sw, English", "sw") == named
    settings = named["task_settings"]["a"]["gazetteer"]
    assert settings["languages"] == ["swahili", "english"]


def test_other_tokenizers_are_found(models, tmp_path):
    """Not those of what is pruned of c, whose base is c."""
    plan = prepared(
        tmp_path,
        f"""
        models: {{a: {models}/a, b: {models}/b, c: {models}/c}}
        base: a
        prune: [{{method: magnitude, sparsity: 0.5}}]
        tasks: [{{task: gazetteer, items: 4}}]
        """,
    )
    assert plan.other_tokenizer == {"c"}


@pytest.mark.usefixtures("any_tensors")  # plain ones
def test_quantised_checkpoint_decides_the_dtype(models, tmp_path, monkeypatch):
    small = shutil.copytree(models / "a", tmp_path / "small")
    with_quantisation(small, LAYOUTS["w4a16"].config)
    monkeypatch.setattr(processor, "instruction_sets", lambda: ("avx2", "avx512f"))
    for module in (quantised, engine):
        monkeypatch.setattr(module, "serves_cpus", lambda: True)
    sweep = f"""
    models: {{a: {models}/a, small: {small}}}
    base: a
    tasks: [{{task: gazetteer, items: 2}}]
    gate: {{default: {{max_drop: 50, max_lost: 50}}, tasks: {{gazetteer: {{max_drop: 2}}}}}}
    """
    plan = prepared(tmp_path, sweep)
    chosen = (
        "dtype auto: this run computes every checkpoint in bfloat16, because of small"
        " (W4A16 (group 32))"
    )
    few = (
        "gazetteer: 18 items: a PASS (drop of said answers: at most 2.0 pp) needs at least"
        " 149 contexts, and there are 18 (see `resurface gate --plan`)"
    )
    assert list(plan.notes()) == [(few, True), (chosen, False)]
    assert plan.engine.dtype == plan.identity["engine"]["dtype"] == "bfloat16"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    # a cluster has other processors
    assert prepared(tmp_path, sweep).findings == (chosen,)


@pytest.mark.parametrize(("cap", "cut"), [(32, 2), (90, 1), (200, 0)])
def test_cut_contexts_are_told(models, tmp_path, cap, cut):
    lines = []
    for words in (1, 12, 60):
        item = {"id": f"i{words}", "language": "english", "context": "ab " * words}
        lines.append(json.dumps(item | {"question": "Where?", "answers": ["Belu"]}))
    (tmp_path / "q.jsonl").write_text("\n".join(lines), encoding="utf-8")
    sweep = f"""
    models: {{a: {models}/a}}
    tasks: [{{task: "jsonl:{tmp_path}/q.jsonl", probes: [greedy], prompt_tokens: {cap}}}]
    """
    told = [note for note in prepared(tmp_path, sweep).findings if "cut" in note]
    assert len(told) == (cut > 0)
    for note in told:
        assert (
            f"prompts of {cap} tokens cut the contexts of {cut} of the first 3 " in note
        )


def test_unserved_are_set_aside_alone(models, tmp_path, monkeypatch):
    """`strict` refuses the sweep, and names all."""
    monkeypatch.setattr(processor, "instruction_sets", lambda: ("avx2",))
    for module in (quantised, engine):
        monkeypatch.setattr(module, "serves_cpus", lambda: True)
    sweep = f"""
    models: {{a: {models}/a}}
    compress: [{{method: rtn, scheme: [FP8_DYNAMIC, W4A16, W8A8]}}]
    tasks: [{{task: gazetteer, items: 2}}]
    controls: none
    """
    plan = prepared(tmp_path, sweep)
    assert {job.name for job in plan.jobs if job.is_made} == {"rtn-fp8_dynamic"}
    assert {each.stage for each in plan.unusable} == {"prune"}
    assert set(aside(plan)) == {"rtn-w4a16", "rtn-w8a8"}
    assert aside(plan)["rtn-w4a16"].startswith("compress: W4A16")
    told = refused(prepared, tmp_path, sweep, strict=True)
    assert told.startswith("rtn-w4a16: compress: W4A16")
    assert told.endswith("; refused too: rtn-w8a8")


@pytest.fixture(scope="module")
def faulty(models, tmp_path_factory):
    """A sweep with one checkpoint of each fault that a single checkpoint can have, and
    words of each reason."""
    folder = tmp_path_factory.mktemp("faulty")
    tasks, files = "tasks: [{task: gazetteer, items: 2, probes: [greedy]}]", {}
    for name in ("dtype", "heads", "tokens", "damaged"):
        files[name] = shutil.copytree(models / "a", folder / name)
    rewrite(files["dtype"] / "config.json", dtype="float16")
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    rewrite(files["heads"] / "config.json", **heads)
    short = save_tiny_model(folder / "short", max_position_embeddings=40)
    document = json.loads((files["tokens"] / "tokenizer.json").read_text())
    rows = json.loads((models / "a" / "config.json").read_text())["vocab_size"]
    document["added_tokens"].append(
        document["added_tokens"][0] | {"id": rows, "content": "Question"}
    )
    rewrite(files["tokens"] / "tokenizer.json", **document)
    (files["damaged"] / "model.safetensors").write_bytes(b"short")
    given = [f"{{checkpoint: {path}, label: {name}}}" for name, path in files.items()]
    given += [f"{{checkpoint: {short}, label: short}}"]
    given += [f"{{checkpoint: {folder}/gone, label: gone}}"]
    given += ["{checkpoint: org/none, label: hub}", "{method: gptq, scheme: W4A16}"]
    sweep = f"""
    models: {{a: {models}/a}}
    prune: [{{method: layers, sparsity: [0.1, 0.5, 0.55]}},
            {{method: magnitude, sparsity: 0.5}}]
    calibration: {{source: gazetteer, samples: 2}}
    compress: [{", ".join(given)}]
    engine: {{tensor_parallel: 2}}
    controls: none
    {tasks}
    """
    return sweep, {
        "dtype": "dtype auto would compute it in float16, and its base a in float32",
        "heads": "has 1 attention heads, which engine.tensor_parallel 2",
        "tokens": "is beyond the",
        "damaged": "truncated",
        "short": "leaves no room for a prompt within 40 positions",
        "gone": "no such directory",
        "hub": "the hub does not give it",
        "layers-0.1": "none would go",
        "layers-0.55": "removes as many layers as layers-0.5",
        "gptq-w4a16": "no network",
    }


def rewrite(file, **changes):
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.fixture
def on_a_cluster(monkeypatch):
    """Of GPUs, without a hub and without packages."""

    def nothing(*_, **__):
        raise InputError("no network")

    monkeypatch.setattr(engine, "serves_cpus", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr("huggingface_hub.snapshot_download", nothing)
    tried = []
    monkeypatch.setattr(
        llm_compressor, "environment", lambda: tried.append(1) or nothing()
    )
    return tried


@pytest.mark.usefixtures("any_tensors")
def test_each_fault_costs_its_checkpoint(faulty, tmp_path, on_a_cluster):
    """Nothing else: they are told with their names, and the rest is prepared."""
    sweep, reasons = faulty
    steps = []
    plan = prepared(tmp_path, sweep, step=lambda text, aloud: steps.append(text))
    found = aside(plan)
    assert found.keys() == reasons.keys()
    for name, words in reasons.items():
        assert words in found[name], (name, found[name])
    assert {job.name for job in plan.jobs} == {"a", "layers-0.5", "magnitude-0.5"}
    assert plan.asked.keys() == {"a", "layers-0.5", "magnitude-0.5"}
    assert (plan.dense.keys(), len(on_a_cluster)) == ({"a"}, 1)
    named = {step.partition(":")[0] for step in steps if ":" in step}
    assert named == {"a", "layers-0.5", "magnitude-0.5", *reasons}
    told = refused(prepared, tmp_path, sweep, strict=True)
    assert told.startswith("hub: checkpoint org/none: no such directory")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("any_tensors", "on_a_cluster")
@pytest.mark.parametrize("seed", range(4))
def test_independent_checks_have_any_order(faulty, tmp_path, monkeypatch, seed):
    def found():
        plan = prepared(tmp_path, faulty[0])
        return {*plan.unusable}, sorted(plan.findings), plan.identity

    expected, listed = found(), preflight.independent_checks

    def shuffled(*of, **how):
        made = [*listed(*of, **how).items()]
        return dict(random.Random(seed).sample(made, len(made)))

    monkeypatch.setattr(preflight, "independent_checks", shuffled)
    assert found() == expected


def test_base_refuses_the_sweep(models, tmp_path):
    """By a check of a checkpoint, with the names of the others."""
    sweep = f"""
    models: {{a: {models}/a}}
    compress: [{{checkpoint: {tmp_path}/gone, label: gone}}]
    tasks: [{{task: gazetteer, items: 2, chat: true}}]
    """
    told = refused(prepared, tmp_path, sweep)
    assert "chat: the tokenizer has no chat template; refused too: gone" in told


def test_missing_template_costs_its_checkpoint(models, tmp_path):
    shutil.copytree(models / "a", tmp_path / "chat")
    template = tmp_path / "chat" / "chat_template.jinja"
    template.write_text("{{ messages[0].content }}", encoding="utf-8")
    sweep = f"""
    models: {{chat: {tmp_path}/chat, a: {models}/a}}
    tasks: [{{task: gazetteer, items: 2, chat: true}}]
    """
    plan = prepared(tmp_path, sweep)
    assert [job.name for job in plan.jobs] == ["chat"]
    assert "the tokenizer has no chat template" in aside(plan)["a"]


# ---- checkpoints are inspected several at a time, each as it is alone


def job(name: str, path: Path) -> CheckpointJob:
    return CheckpointJob(name=name, path=path, model=name, base=None, tasks={})


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


@pytest.mark.parametrize(("value", "told"), [(99999, True), (VOCABULARY + 63, False)])
def test_eos_outside_vocabulary_is_told(tmp_path, value, told):
    """Published models have rows for more tokens than their tokenizers know: the
    last id is sound."""
    model = save_tiny_model(tmp_path / "m", vocabulary=VOCABULARY + 64)
    (model / "generation_config.json").write_text(f'{{"eos_token_id": [0, {value}]}}')
    sweep = f"models: {{m: {model}}}\ntasks: [{{task: gazetteer, items: 2}}]"
    note = f"m: eos_token_id: {value}, which ends no answer, is no id of the vocabulary"
    assert (note in prepared(tmp_path, sweep).findings) is told


@pytest.mark.parametrize(
    ("question", "prompt", "refused_for"),
    [
        ("Where is <new>?", "", "token {} ('<new>') of item 'q1' of task 'q'"),
        ("Where?", "", ""),
        ("Where?", "<new> {{ question }}", "token {} ('<new>') of item 'q1' of task 'q+mine'"),
    ],
)  # fmt: skip
def test_tokens_beyond_the_model(models, tmp_path, question, prompt, refused_for):
    """Of a tokenizer with a token more than its model has rows."""
    other = tmp_path / "other"
    shutil.copytree(models / "a", other)
    rows = json.loads((other / "config.json").read_text())["vocab_size"]
    document = json.loads((other / "tokenizer.json").read_text())
    document["added_tokens"].append(
        document["added_tokens"][0] | {"id": rows, "content": "<new>"}
    )
    (other / "tokenizer.json").write_text(json.dumps(document))
    file = tmp_path / "q.jsonl"
    row = {
        "id": "q1",
        "language": "english",
        "context": "",
        "question": question,
        "answers": ["x"],
    }
    file.write_text(json.dumps(row))
    sweep = f"models: {{a: {models}/a}}\ncompress: [{{checkpoint: {other}, label: b}}]"
    if prompt:
        sweep += f"\nprompts: {{mine: '{prompt}'}}"
    plan = prepared(tmp_path, f"{sweep}\ntasks: [{{task: 'jsonl:{file}', items: 0}}]")
    reasons = [*aside(plan).values()]
    note = f"b: no prompt has 1 token of its tokenizer beyond the model's {rows} rows, as '<new>'"
    assert [note in plan.findings, len(reasons)] == [not refused_for, bool(refused_for)]
    if refused_for:
        assert f"checkpoint {other}: {refused_for.format(rows)}" in reasons[0]
        assert (set(plan.dense), set(plan.asked)) == ({"a"}, {"a"})


def test_differing_configuration_is_told(tmp_path):
    base = save_tiny_model(tmp_path / "base")
    other = save_tiny_model(tmp_path / "other", seed=1, rms_norm_eps=1e-5)
    sweep = (
        f"models: {{base: {base}}}\ncompress: [{{checkpoint: {other}, label: int4}}]"
    )
    plan = prepared(tmp_path, f"{sweep}\ntasks: [{{task: gazetteer, items: 2}}]")
    line = "config.json: rms_norm_eps 1e-06 against 1e-05"
    assert plan.differences == {"int4": [line]}
    assert f"int4: differs from its base beside weights: {line}" in plan.findings


def test_exchanged_base_is_told(tmp_path):
    dense = save_tiny_model(tmp_path / "dense")
    made = tmp_path / "made"
    prune(magnitude(dense), made)
    sweep = (
        f"models: {{made: {made}}}\ncompress: [{{checkpoint: {dense}, label: dense}}]"
    )
    plan = prepared(tmp_path, f"{sweep}\ntasks: [{{task: gazetteer, items: 2}}]")
    line = "made is compressed (magnitude), and it is not: are they exchanged?"
    assert plan.differences == {"dense": [line]}


def test_differing_settings_of_a_file_are_told(tmp_path):
    base = save_tiny_model(tmp_path / "base")
    shutil.copytree(base, tmp_path / "q4")
    line = "rope.freq_base: rope_theta 500000.0 against 10000.0"
    served = ServedModel(gguf="q4.gguf", sha256="1", differences=(line,))
    (tmp_path / "q4" / "served.json").write_text(served.model_dump_json())
    jobs = [
        replace(job("base", base), base="base"),
        replace(job("q4", tmp_path / "q4"), base="base"),
    ]
    dense = {each.name: inspect_checkpoint(each.path, each.name) for each in jobs}
    assert checks.differences_of(jobs, dense, {}) == {"q4": [line]}
