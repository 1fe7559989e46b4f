"""The README's commands, run as a reader would, on a tiny model in one directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.documents import ROOT, blocks, commands
from tests.support.models import save_tiny_model
from tests.support.runs import resurface

README = ROOT / "README.md"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the reader works, after the README's commands."""
    path = tmp_path_factory.mktemp("reader")
    save_tiny_model(path / "models" / "mine", "qwen3")
    (path / "calibration.txt").write_text("\n".join(f"Line {n} of plain text." for n in range(40)), encoding="utf-8")
    line = next(each.text for each in blocks(README) if each.file == "questions.jsonl")
    assert set(json.loads(line)) == {"id", "language", "context", "question", "answers"}
    questions = [line.strip().replace("q1", f"q{n}").replace("1701", str(1701 + n)) for n in range(4)]
    (path / "questions.jsonl").write_text("\n".join(questions), encoding="utf-8")
    for words in commands(README):
        if words[0] == "resurface" and words[1] in ("prune", "eval", "gate"):
            done = resurface(*words[1:], cwd=path)
            assert done.returncode == 0, (words, done.stderr)
    return path


def test_the_readme_prunes_evaluates_and_judges(directory: Path) -> None:
    assert [words[1] for words in commands(README) if words[0] == "resurface"] == ["prune", "eval", "gate", "doctor"]
    assert (directory / "pruned" / "wanda-0.5" / "prune_manifest.json").is_file()
    assert (directory / "runs" / "mine" / "report" / "index.html").is_file()
    assert (directory / "runs" / "mine" / "gate.json").is_file()
