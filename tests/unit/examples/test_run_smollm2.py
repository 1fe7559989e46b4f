"""What the example asks, and that its data are what they should be."""

import subprocess
import sys

import pytest

from examples import run_smollm2
from examples.make_questions import PASSAGES, questions
from examples.make_smollm2 import ExampleError
from launch.sweep.config import load_sweep

CALIBRATION = PASSAGES.with_name("calibration.txt")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs" / "smollm2"


def begun(out, *asked, **how):
    file = run_smollm2._write_sweep(out, *asked, **how)
    out.mkdir(parents=True)
    (out / "run.json").write_text("{}")
    return file


def test_answers_stand_once():
    asked = list(questions())
    assert len(asked) == len({item["id"] for item in asked}) == 160
    answers = [item["answers"][0].lower() for item in asked]
    assert len(set(answers)) == len(answers)  # every other answer is a distractor
    lines = CALIBRATION.read_text(encoding="utf-8").splitlines()
    contexts = {item["context"] for item in questions()}
    assert not contexts & set(lines)
    assert all(lines)
    assert (
        len(lines)
        == len(set(lines))
        == load_sweep(run_smollm2.SWEEP).calibration.samples
    )


def test_begun_run_keeps_its_task(out, monkeypatch, tmp_path):
    monkeypatch.setattr(run_smollm2, "_hub_has_xquad", lambda: False)
    file = begun(out, None, 5)
    before = file.read_bytes()
    # the network is back
    monkeypatch.setattr(run_smollm2, "_hub_has_xquad", lambda: True)
    assert run_smollm2._write_sweep(out, None, None) == file
    assert run_smollm2._write_sweep(out, None, 5).read_bytes() == before
    with pytest.raises(
        ExampleError, match="its run has items 5, not 6; choose another --out"
    ):
        run_smollm2._write_sweep(out, None, 6)
    chat = out.with_name("chat")
    assert load_sweep(begun(chat, f"xquad:{tmp_path}", 4, chat=True)).tasks[0].chat
    # as it began
    assert load_sweep(run_smollm2._write_sweep(chat, None, None)).tasks[0].chat
    raw = out.with_name("raw")
    begun(raw, f"xquad:{tmp_path}", 4)
    with pytest.raises(ExampleError, match="no chat prompts"):
        run_smollm2._write_sweep(raw, None, None, chat=True)


def test_failed_model_gives_exit_code(out, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # main goes to the repository; pytest comes back
    ran = []

    def run(command, **_):
        ran.append(command[2])
        return subprocess.CompletedProcess(command, 2)

    monkeypatch.setattr(run_smollm2.subprocess, "run", run)
    monkeypatch.setattr(run_smollm2, "_hub_has_xquad", lambda: False)
    monkeypatch.setattr(sys, "argv", ["run_smollm2", "--out", str(out)])
    assert run_smollm2.main() == 2
    assert ran == ["examples.make_smollm2"]
