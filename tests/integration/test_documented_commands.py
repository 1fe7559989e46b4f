"""The commands of the README and of docs/, run as a reader would, on a tiny model and
two items in one directory. The README's come first, then those of the other pages in
the order of READING. A file has the content that a page shows under `<!-- example:
FILE -->`. A page's run that equals an earlier page's begins as a copy of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.support.documents import DOCS, PAGES, ROOT, blocks, commands, example
from tests.support.models import save_tiny_model
from tests.support.runs import environment, finish, resurface, resurface_apart, typed

README = ROOT / "README.md"
READING = [  # the first makes runs/grid
    pytest.param(page, id=page.stem)
    for page in sorted(
        [*DOCS, ROOT / "SKILL.md"], key=lambda page: page.name != "first-run.md"
    )
]
pytestmark = [pytest.mark.slow, pytest.mark.more]

# `--out` of what equals an earlier page's command -> the run of that command
SAME = {"runs/night": "runs/grid", "runs/skill": "runs/mine"}

# What does not run here, and why. `tests/unit/test_documents.py` has looked at the
# options of each.
ELSEWHERE = {
    "bench": "benchmarks have tests of their own",
    "demo": "minutes; it is the first command of `make`",
    "doctor": "test_doctor.py",
    "match": "test_match.py",
    "--watch": "waits for hours: test_watch.py",
    "runs/paper": "needs the hub's models and data",
    "runs/small": "minutes: test_cli.py",
    "--track": "needs a tracker: its tests are in tests/unit",
    "models/mixture": "needs llm-compressor: test_engine_models.py",
    "mine.Q4_K_M.gguf": "needs a GGUF file: test_served.py",
    "--detach": "test_detach.py",
    "--endpoint": "needs a server: test_served_run.py",
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
    questions = [line, line.replace("q1", "q2").replace("1701", "1702")]
    (path / "questions.jsonl").write_text("\n".join(questions), encoding="utf-8")
    sweep = path / "sweep.yaml"  # no second engine of vLLM, and less of everything
    text = sweep.read_text(encoding="utf-8") + "engine: {kind: torch}\n"
    for more, less in (
        ("items: 4", "items: 1"),
        ("samples: 64, sequence_length: 512", "samples: 2, sequence_length: 128"),
        ("sparsity: [0.5, 0.6]", "sparsity: 0.5"),
    ):
        assert more in text
        text = text.replace(more, less)
    sweep.write_text(text, encoding="utf-8")
    logs = ROOT / "tests" / "data" / "logs" / "lm-eval-0.4.13" / "one-rank"
    shutil.copytree(logs, path / "logs")
    for words in here(README):
        finish(*words, cwd=path)
    for copy in ("before", "after"):
        shutil.copytree(path / "runs" / "mine", path / "runs" / copy)
    return path


def here(page: Path) -> list[list[str]]:
    found = [words[1:] for words in commands(page) if words[0] == "resurface"]
    return [words for words in found if not ELSEWHERE.keys() & set(words)]


def test_the_readme_prunes_evaluates_and_judges(directory):
    assert [words[0] for words in here(README)] == ["compress", "prune", "eval", "gate"]
    compressed = directory / "compressed" / "w8a8"
    assert (compressed / "quantise_manifest.json").is_file()
    assert (directory / "pruned" / "wanda-0.5" / "prune_manifest.json").is_file()
    assert (directory / "runs" / "mine" / "report" / "index.html").is_file()
    assert (directory / "runs" / "mine" / "gate.json").is_file()


@pytest.mark.parametrize("page", READING)
def test_the_commands_of_a_page_run(page, directory, monkeypatch, capsys):
    monkeypatch.chdir(directory)
    for words in here(page):
        for again in SAME.keys() & set(words):
            if not Path(again).exists():
                shutil.copytree(SAME[again], again)
        if words[0] in ("eval", "prune") or (
            words[0] == "sweep" and "--dry-run" not in words
        ):
            done = resurface(*words, cwd=directory)
            code, output = done.returncode, done.stdout + done.stderr
        else:
            code, output = typed(monkeypatch, *words), "".join(capsys.readouterr())
        assert code in ({0, 4} if words[0] == "gate" else {0}), (words, output)


def test_documented_python_runs(directory, monkeypatch):
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


def test_documented_plugin_is_installed(tmp_path):
    """The package of docs/python.md: its entry point, its task, probe and table."""
    for file in ("plugin/pyproject.toml", "plugin/riddles.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(example("python.md", file), encoding="utf-8")
    (tmp_path / "my.txt").write_text("Who barks?\tdog\nWho purrs?\tcat\n")
    target = tmp_path / "installed"
    pip = "-m pip install -q --no-deps --no-build-isolation --no-index --target"
    subprocess.run(
        [sys.executable, *pip.split(), str(target), "./plugin"],
        cwd=tmp_path,
        check=True,
    )
    places = [str(target), environment().get("PYTHONPATH", "")]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    words = "eval bundled --task riddles:my.txt --probes greedy,first --engine torch"
    done = resurface_apart(*words.split(), "--out", "run", cwd=tmp_path, **path)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "run" / "tables" / "sure.csv")
    assert table[["task", "n"]].to_numpy().tolist() == [["riddles", 2]]
