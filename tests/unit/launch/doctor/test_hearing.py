"""A witness's process: what it says, and what is said of one that dies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launch.doctor import hearing
from launch.doctor.evidence import Statement
from launch.doctor.examination import briefed
from launch.doctor.witnesses import Witness

PROGRAM = """
import os, signal, sys
from launch.doctor import hearing
from launch.doctor.evidence import Statement
from launch.doctor.witnesses import Witness

def said(brief): return Statement(dtype=os.environ["MARK"] + brief.dtype)
def level(brief): return Statement(dtype=os.environ["VLLM_LOGGING_LEVEL"])
def raises(brief): raise ValueError("two\\nlines")
def killed(brief): os.kill(os.getpid(), signal.SIGKILL)
def leaves(brief): print("the last word", file=sys.stderr); sys.exit(3)

hearing.WITNESSES = [
    Witness(name=each.__name__, what="", state=each) for each in (said, level, raises, killed, leaves)
]
hearing.main()
"""


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "card.logs"
    folder.mkdir()
    return folder


@pytest.fixture
def hear(monkeypatch, tmp_path, logs):
    """Hears a witness of PROGRAM."""
    monkeypatch.setenv("MARK", "in ")
    popen = subprocess.Popen
    monkeypatch.setattr(
        hearing.subprocess,
        "Popen",
        lambda command, **more: popen([sys.executable, "-c", PROGRAM, *command[4:]], **more),
    )

    def run(name: str) -> Statement | str:
        witness = Witness(name=name, what="", state=lambda brief: Statement())
        return hearing.hear(witness, briefed(tmp_path / "dense", tmp_path, "float32", logs))

    return run


def test_what_it_says(hear):
    said = hear("said")
    assert isinstance(said, Statement)
    assert said.dtype == "in float32"
    assert said.seconds >= 0


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "ValueError: two lines"),
        ("killed", "its process ended with signal 9 (SIGKILL)"),
        ("leaves", "its process ended with exit code 3: the last word"),
    ],
)
def test_why_it_says_nothing(hear, name, why):
    assert hear(name) == why


def test_one_that_hangs_is_ended(hear, monkeypatch):
    monkeypatch.setattr(hearing, "_SECONDS", 0.01)
    assert hear("said") == "no answer after 0.01 s"


def test_what_it_writes_is_kept_in_a_log_of_its_own(hear, logs):
    hear("leaves")
    hear("said")
    assert {log.name: log.read_text() for log in logs.iterdir()} == {"leaves.log": "the last word\n", "said.log": ""}


@pytest.mark.parametrize(("chosen", "level"), [(None, "INFO"), ("ERROR", "ERROR")])
def test_vllm_says_in_the_log_what_it_chose_unless_the_user_wants_less(hear, monkeypatch, chosen, level):
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    if chosen is not None:
        monkeypatch.setenv("VLLM_LOGGING_LEVEL", chosen)
    assert hear("level").dtype == level
