"""Errors guess what the user meant: a file without its task, a misspelled field."""

import json

import pytest
import yaml
from typer._completion_classes import BashComplete
from typer.main import get_command

from launch.commands import cli
from launch.trackers.tracking import TRACKERS
from tests.support.runs import typed

QUESTION = {
    "id": "q1",
    "language": "english",
    "context": "Karo was founded in 1701.",
    "question": "When was Karo founded?",
    "answers": ["1701"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "questions.jsonl").write_text(json.dumps(QUESTION) + "\n")
    (tmp_path / "text.txt").write_text("some text\n")
    (tmp_path / "table.csv").write_text("a,b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        *(("opions", "options"), ("Distractors", "options"), ("passage", "context")),
        *(("query", "question"), ("gold", "answers"), ("lang", "language")),
    ],
)
def test_misspelled_field(folder, monkeypatch, capsys, field, meant):
    line = dict(QUESTION)
    line[field] = line.pop(meant, ["a", "b"])
    (folder / "questions.jsonl").write_text(json.dumps(line) + "\n")
    words = ["show-prompt", "--task", "jsonl:questions.jsonl", "--model", "bundled"]
    assert typed(monkeypatch, *words) == 2
    message = f"line 1: unknown field {field!r}; did you mean {meant!r}?"
    assert message in capsys.readouterr().err


PRUNE = "prune bundled --method wanda --sparsity 0.5 --out x"
EVAL = "eval bundled --task gazetteer --out x"
PLUGINS = "a plugin adds others: entry point resurface.plugins, or RESURFACE_PLUGINS)"
# what was typed, and a part of the sentence that answers it
TYPED = [
    ("run x", "did you mean `resurface eval`?"),
    ("quantise x", "did you mean `resurface compress MODEL --method gptq"),
    ("evals x", "did you mean 'eval'?"),
    ("GATE x", "did you mean 'gate'?"),
    ("version", "did you mean `resurface --version`?"),
    (f"{EVAL} --probes gredy", "unknown probe 'gredy'; did you mean 'greedy'?"),
    (f"{EVAL} --probes greedy,Choice", "did you mean 'choice'?"),
    (f"{EVAL} --formats opn", "--formats: unknown value 'opn'; did you mean 'open'?"),
    (f"{EVAL} --dtype float", "did you mean 'float32'?"),
    (f"{EVAL} --options alik", "--options: unknown value 'alik'; did you mean 'alike'?"),
    (f"{EVAL} --scoring forcd", "--scoring: unknown value 'forcd'; did you mean 'forced'?"),
    (f"{EVAL} --probe greedy", "--probes"),
    ("eval bundled --out x --task jsonl:question.jsonl", "did you mean 'questions.jsonl'?"),
    ("eval bundled --out x --task hf:tabel.csv", "did you mean 'table.csv'?"),
    ("eval bundled --out x --task text:gazeteer --probes perplexity", "did you mean 'gazetteer'?"),
    (f"{PRUNE} --calibration gazeteer", "unknown source 'gazeteer'; did you mean 'gazetteer'?"),
    (f"{PRUNE} --calibration text:txt.txt", "did you mean 'text.txt'?"),
    (f"{PRUNE} --allocation OWL", "did you mean 'owl'?"),
    ("prune bundl --method magnitude --sparsity 0.5 --out x", "did you mean 'bundled'?"),
    ("compress bundled --method gptq --scheme w4a16 --out x", "did you mean 'W4A16'?"),
    ("sweep sweep.yml --dry-run", "did you mean 'sweep.yaml'?"),
    ("sweep dem --dry-run", "did you mean 'demo'?"),
    ("render slrm demo --out x", "did you mean 'slurm'?"),
    ("bench scor", "did you mean 'score'?"),
    ("eval ./modelz --task gazetteer --out x", "checkpoint ./modelz: no such directory"),
    ("eval bundled ./run --task gazetteer --out x", "no such directory; did you mean 'runs'?"),
    ("eval bundled --base ./run --task gazetteer --out x", "checkpoint ./run: no such directory"),
    ("sweep model.yaml --dry-run", "checkpoint bundeled: no such directory; did you mean 'bundled'?"),
    ("sweep base.yaml --dry-run", "'dens' is not one of the models (dense); did you mean 'dense'?"),
    (f"{EVAL} --control order --control batch", "--control is there twice: write it once"),
    (f"{EVAL} --probes greedy;beam", "write a comma between two names"),
    ("show-prompt --task gazetteer --model bundled --item swahili-0017x", "did you mean 'swahili-0017'?"),
    ("status runs/mime", "did you mean 'runs/mine'?"),
    ("report full", "full: no such directory; did you mean 'done/full'?"),
    ("report done/full/records", "records: not a run directory: it has no records/; did you mean 'done/full'?"),
    ("gate done", "done: not a run directory: it has no records/ (runs in done: full)"),
    ("report runs/mime", "did you mean 'runs/mine'?"),
    ("tasks towns", PLUGINS),
    (f"{EVAL} --probes gready", PLUGINS),
    (f"{EVAL} --engine toy", PLUGINS),
    ("compress bundled --method contrary --out x", PLUGINS),
    ("tasks gazeteer", "did you mean 'gazetteer'?"),
    ("compare x", "Missing argument 'B': "),
    ("eval bundled --out x --task questions.jsonl", "did you mean 'jsonl:questions.jsonl'?"),
    ("eval bundled --out x --task table.csv", "did you mean 'hf:table.csv'?"),
    (f"{PRUNE} --calibration text.txt", "'text.txt' is unknown; did you mean 'text:text.txt'?"),
    (f"{PRUNE} --calibration questions.jsonl", "did you mean 'jsonl:questions.jsonl'?"),
    ("eval done --out x --task gazetteer", "checkpoint done: config.json is missing"),
    ("eval bundled --engine endpoint --task gazetteer --out x", "a served model has it by itself"),
    ("compress bundled", "Missing option '--method': "),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), TYPED)
def test_typing_error_is_answered(folder, monkeypatch, capsys, words, message):
    (folder / "sweep.yaml").write_text("")
    (folder / "runs" / "mine").mkdir(parents=True)
    (folder / "done" / "full" / "records").mkdir(parents=True)
    (folder / "done" / "full" / "run.json").write_text("{}")
    tasks = "tasks: [{task: gazetteer}]\n"
    (folder / "model.yaml").write_text(f"models: {{dense: bundeled}}\n{tasks}")
    (folder / "base.yaml").write_text(
        f"models: {{dense: bundled}}\nbase: dens\n{tasks}"
    )
    assert typed(monkeypatch, *words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (folder / "x").exists()


# a line of YAML, the place of its unknown key, and the key that was meant
WRONG_KEYS = [
    ("gradng: paper", "gradng", "grading"),
    ("tasks: [{task: gazetteer, itmes: 3}]", "tasks.0.itmes", "items"),
    ("tasks: [{task: 'hf:x', fields: {anwser: a}}]", "tasks.0.fields.anwser", "answer"),
    ("tasks: [{task: gazetteer, thinking: {budgt: 3}}]", "tasks.0.thinking.budgt", "budget"),
    ("prune: [{method: wanda, sparsty: 0.5}]", "prune.0.sparsty", "sparsity"),
    ("prune: [{method: wanda, calibration: {sorce: c4}}]", "prune.0.calibration.sorce", "source"),
    ("compress: [{method: rtn, schema: W8A8}]", "compress.0.schema", "scheme"),
    ("calibration: {sample: 3}", "calibration.sample", "samples"),
    ("engine: {knd: vllm}", "engine.knd", "kind"),
    ("resources: {engine: 2}", "resources.engine", "engines"),
    ("gate: {max_dorp: 2}", "gate.max_dorp", "max_drop"),
    ("include: [{tasks: [{task: gazetteer, probe: [rank]}]}]", "include.0: tasks.0.probe", "probes"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "place", "meant"), WRONG_KEYS)
def test_wrong_key_names_its_place(folder, monkeypatch, capsys, line, place, meant):
    document = {"models": {"dense": "bundled"}, "tasks": [{"task": "gazetteer"}]}
    (folder / "sweep.yaml").write_text(json.dumps(document | yaml.safe_load(line)))
    assert typed(monkeypatch, "sweep", "sweep.yaml", "--dry-run") == 2
    key = place.rpartition(".")[2]
    message = f"{place}: unknown key {key!r}; did you mean {meant!r}?"
    assert f"sweep.yaml: {message}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("eval x --probes gr", ["greedy"]),
        ("eval x --probes rank,al", ["rank,aligned_rank"]),
        ("eval x --task gaz", ["gazetteer"]),
        ("eval x --track ", TRACKERS),
        ("sweep small/l", ["small/ladder"]),
        ("render slurm dem", ["demo"]),
        ("bench sc", ["score"]),
        ("prune x --method wa", ["wanda"]),
        ("compress x --scheme W8A1", ["W8A16"]),
        ("tasks mml", ["mmlu", "mmlu_pro"]),
        ("gate runs/", ["runs/mine"]),
        ("compare a ", ["other", "runs/mine"]),
    ],
)  # fmt: skip
def test_shell_completes_names(folder, monkeypatch, words, names):
    for run in ("runs/mine", "other"):
        (folder / run).mkdir(parents=True)
        (folder / run / "run.json").touch()
    arguments = words.split(" ")
    monkeypatch.setenv("COMP_WORDS", f"resurface {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(arguments)))
    program = get_command(cli.app)
    shell = BashComplete(program, {}, "resurface", "_RESURFACE_COMPLETE")
    assert sorted(shell.complete().split("\n")) == sorted(names)
