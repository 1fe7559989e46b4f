"""Errors guess what the user meant: a file without its task, a misspelled field."""

import json

import pytest

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
    ("words", "message"),
    [
        (
            "eval bundled --out x --task questions.jsonl",
            "unknown task 'questions.jsonl'; did you mean 'jsonl:questions.jsonl'?",
        ),
        ("eval bundled --out x --task table.csv", "did you mean 'hf:table.csv'?"),
        (
            "prune bundled --method wanda --sparsity 0.5 --out x"
            " --calibration text.txt",
            "'text.txt' is unknown; did you mean 'text:text.txt'?",
        ),
        (
            "prune bundled --method wanda --sparsity 0.5 --out x"
            " --calibration questions.jsonl",
            "did you mean 'jsonl:questions.jsonl'?",
        ),
    ],
)
def test_file_without_its_kind(folder, monkeypatch, capsys, words, message):
    assert typed(monkeypatch, *words.split()) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("field", "meant"),
    [("opions", "options"), ("option", "options"), ("anwsers", "answers")],
)
def test_misspelled_field(folder, monkeypatch, capsys, field, meant):
    line = dict(QUESTION)
    line[field] = line.pop(meant, ["a", "b"])
    (folder / "questions.jsonl").write_text(json.dumps(line) + "\n")
    words = ["show-prompt", "--task", "jsonl:questions.jsonl", "--model", "bundled"]
    assert typed(monkeypatch, *words) == 2
    message = f"line 1: unknown field {field!r}; did you mean {meant!r}?"
    assert message in capsys.readouterr().err


def test_other_fields_are_ignored(folder, monkeypatch, capsys):
    line = QUESTION | {"source": "my book", "difficulty": 3}
    (folder / "questions.jsonl").write_text(json.dumps(line) + "\n")
    words = ["show-prompt", "--task", "jsonl:questions.jsonl", "--model", "bundled"]
    assert typed(monkeypatch, *words) == 0
