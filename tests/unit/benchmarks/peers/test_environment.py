"""The environments that benchmarks make for what they compare with."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

from benchmarks.peers import environment

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []
    monkeypatch.setattr(environment.subprocess, "run", lambda command, **_: asked.append(command))
    return asked


def test_it_is_made_once_and_left_out_in_words_where_it_cannot_be(tmp_path, monkeypatch, commands):
    def refuse(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="Collecting\nERROR: no matching distribution\n")

    with monkeypatch.context() as without:
        without.setattr(environment.subprocess, "run", refuse)
        refused = environment.python_of("some", ["some==1"])
    assert refused == "its environment cannot be made: ERROR: no matching distribution"
    python = environment.python_of("some", ["some==1"])
    assert isinstance(python, Path)
    assert python.is_relative_to(tmp_path)
    assert python.exists()
    assert not list(python.parents[1].rglob("*.pth"))
    assert environment.python_of("some", ["some==1"]) == python
    assert len(commands) == 1  # what is there is not installed again
    assert commands[0][-1] == "some==1"
    assert "--no-deps" not in commands[0]
    assert environment.python_of("some", ["some==2"]) != python


def test_beside_ours_it_sees_our_packages_after_its_own(commands):
    python = environment.python_of("some", ["some==1"], beside_ours=True)
    assert "--no-deps" in commands[0]
    (link,) = python.parents[1].rglob("*.pth")
    assert link.read_text().strip() == sysconfig.get_path("purelib")


def test_the_lock_beside_ours_has_nothing_that_is_ours():
    def names(lock):
        return {pin.partition("==")[0] for pin in environment.pins(ROOT / "requirements" / lock)}

    assert "lm-eval" in names("lm-eval.lock")
    assert not names("lm-eval.lock") & names("cpu.lock")
