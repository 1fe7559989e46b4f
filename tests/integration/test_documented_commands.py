"""The commands of the README and of docs/, run as a reader would, on a tiny model in
one directory. The README's come first, then those of the other pages in the order of
READING. A file has the content that a page shows under `<!-- example: FILE -->`."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.documents import DOCS, PAGES, ROOT, blocks, commands
from tests.support.models import save_tiny_model
from tests.support.runs import finish, resurface, typed

README = ROOT / "README.md"
READING = [  # the first makes runs/grid
    pytest.param(
        page, id=page.stem, marks=pytest.mark.more if page.stem == "fidelity" else ()
    )
    for page in sorted(DOCS, key=lambda page: page.name != "first-run.md")
]
pytestmark = pytest.mark.slow

# What does not run here, and why. `tests/unit/test_documents.py` has looked at the
# options of each.
ELSEWHERE = {
    "bench": "benchmarks have tests of their own",
    "demo": "minutes; it is the first command of `make`",
    "doctor": "test_doctor.py",
    "match": "test_match.py",
    "runs/paper": "needs the hub's models and data",
    "runs/small": "minutes: test_cli.py",
    "--push": "needs the hub: tests/unit/launch/trackers",
    "--track": "needs a tracker: its tests are in tests/unit",
    "models/mine-w4a16": "needs a quantised model: test_compress_sweep.py",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("reader")
    save_tiny_model(path / "models" / "mine", "qwen3")
    (path / "calibration.txt").write_text(
        "\n".join(f"Line {n} of plain text." for n in range(40)), encoding="utf-8"
    )
    for block in (each for page in PAGES for each in blocks(page) if each.file):
        (path / str(block.file)).parent.mkdir(exist_ok=True)
        (path / str(block.file)).write_text(block.text, encoding="utf-8")
    line = (path / "questions.jsonl").read_text(encoding="utf-8").strip()
    assert set(json.loads(line)) == {"id", "language", "context", "question", "answers"}
    questions = [
        line.replace("q1", f"q{n}").replace("1701", str(1701 + n)) for n in range(4)
    ]
    (path / "questions.jsonl").write_text("\n".join(questions), encoding="utf-8")
    for words in here(README):
        finish(*words, cwd=path)
    for copy in ("before", "after"):
        shutil.copytree(path / "runs" / "mine", path / "runs" / copy)
    return path


def here(page: Path) -> list[list[str]]:
    found = [words[1:] for words in commands(page) if words[0] == "resurface"]
    return [words for words in found if not ELSEWHERE.keys() & set(words)]


def test_the_readme_prunes_evaluates_and_judges(directory):
    assert [words[0] for words in here(README)] == ["prune", "eval", "gate"]
    assert (directory / "pruned" / "wanda-0.5" / "prune_manifest.json").is_file()
    assert (directory / "runs" / "mine" / "report" / "index.html").is_file()
    assert (directory / "runs" / "mine" / "gate.json").is_file()


@pytest.mark.parametrize("page", READING)
def test_the_commands_of_a_page_run(page, directory, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    for words in here(page):
        if words[0] in ("eval", "prune") or (
            words[0] == "sweep" and "--dry-run" not in words
        ):
            done = resurface(*words, cwd=directory)
            code, output = done.returncode, done.stdout + done.stderr
        else:
            code, output = typed(monkeypatch, *words), "".join(capsys.readouterr())
        assert code in ({0, 4} if words[0] == "gate" else {0}), (words, output)


def test_documented_python_and_plugin_run(directory, monkeypatch):
    monkeypatch.chdir(directory)
    found = [
        each
        for page in DOCS
        for each in blocks(page)
        if each.language == "python" and not each.file
    ]
    assert found
    for block in found:
        exec(compile(block.text.replace("RUN/", "runs/mine/"), block.page, "exec"), {})
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]),
    )
    monkeypatch.setenv("RESURFACE_PLUGINS", "riddles")
    (directory / "my.txt").write_text(
        "Who barks?\tdog\nWho purrs?\tcat\n", encoding="utf-8"
    )
    assert (
        "Who barks?"
        in finish(
            "show-prompt",
            "--task",
            "riddles:my.txt",
            "--model",
            "bundled",
            cwd=directory,
        ).stdout
    )
