"""The environments of programs whose requirements are not ours."""

import subprocess
import sysconfig

import pytest

from quantising import environment
from quantising.methods import llm_compressor as process
from tests.support.requirements import PYTHONS, pins
from tests.support.sweeps import refused


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []
    monkeypatch.setattr(
        environment.subprocess, "run", lambda command, **_: asked.append(command)
    )
    return asked


def test_environment_is_made_once(tmp_path, monkeypatch, commands):
    def refuse(command, **_):
        raise subprocess.CalledProcessError(
            1, command, stderr="Collecting\nERROR: no matching distribution\n"
        )

    with monkeypatch.context() as without:
        without.setattr(environment.subprocess, "run", refuse)
        told = refused(environment.python_of, "some", ["some==1"])
    assert (
        told == "some: its environment cannot be made: ERROR: no matching distribution"
    )
    python = environment.python_of("some", ["some==1"])
    assert python.is_relative_to(tmp_path)
    assert python.exists()
    assert not list(python.parents[1].rglob("*.pth"))
    assert environment.python_of("some", ["some==1"]) == python
    assert len(commands) == 1  # what is there is not installed again
    assert commands[0][-1] == "some==1"
    assert "--no-deps" not in commands[0]
    assert environment.python_of("some", ["some==2"]) != python
    # ours come after its own
    python = environment.python_of("some", ["some==1"], beside_ours=True)
    assert "--no-deps" in commands[-1]
    (link,) = python.parents[1].rglob("*.pth")
    assert link.read_text().strip() == sysconfig.get_path("purelib")


@pytest.mark.parametrize("python", PYTHONS)
def test_locks_are_whole(python):
    assert (
        f"llmcompressor=={pins(process.LOCK.name, python)['llmcompressor']}"
        == process.REQUIREMENT
    )
    theirs = pins("lm-eval.lock", python)
    assert "lm-eval" in theirs
    assert not set(theirs) & set(pins("cpu.lock", python))
