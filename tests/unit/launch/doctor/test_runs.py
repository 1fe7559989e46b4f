"""The result of a run's process, the reason if the process fails, and what the
machine says of itself."""

import subprocess
import sys

import pytest

from evaluator.engine.processor import instruction_sets, usable_cores
from launch.doctor import runs
from launch.doctor.machine import gpu_of, this_machine
from launch.doctor.results import RunResult
from launch.doctor.runs import Inputs, Run

PROGRAM = """
import os, signal, sys
from launch.doctor import runs
from launch.doctor.results import RunResult
from launch.doctor.runs import Run

def execute(run, inputs):
    match run.name:
        case "answered": return RunResult(dtype=os.environ["MARK"] + inputs.dtype)
        case "level": return RunResult(dtype=os.environ["VLLM_LOGGING_LEVEL"])
        case "raises": raise ValueError("two\\nlines")
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "leaves": print("the last word", file=sys.stderr); sys.exit(3)

runs.execute = execute
runs.RUNS = [Run(name=name, what="") for name in ("answered", "level", "raises", "killed", "leaves")]
runs.main()
"""


@pytest.fixture
def run_apart(monkeypatch, tmp_path):
    monkeypatch.setenv("MARK", "in ")
    (tmp_path / "logs").mkdir()
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess,
        "Popen",
        lambda command, **more: popen(
            [sys.executable, "-c", PROGRAM, *command[4:]], **more
        ),
    )

    def named(name: str) -> RunResult | str:
        inputs = Inputs(
            dense=tmp_path / "dense",
            scratch=tmp_path,
            logs=tmp_path / "logs",
            dtype="float32",
        )
        return runs.run_apart(Run(name=name, what=""), inputs)

    return named


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("raises", "ValueError: two lines"),
        ("killed", "its process died of SIGKILL"),
        ("leaves", "its process ended with exit code 3 (the last word)"),
    ],
)
def test_the_reason_of_a_missing_result(run_apart, name, why):
    assert run_apart(name) == why


def test_hanging_run_is_ended(run_apart, tmp_path, monkeypatch):
    run_apart("leaves")
    answered = run_apart("answered")
    assert isinstance(answered, RunResult)
    assert answered.dtype == "in float32"
    found = {log.name: log.read_text() for log in (tmp_path / "logs").iterdir()}
    assert found == {"leaves.log": "the last word\n", "answered.log": ""}
    monkeypatch.setattr(runs, "_SECONDS", 0.01)
    assert run_apart("level") == "its process has no result after 0.01 s"


def test_machine_names_its_devices():
    found = gpu_of("NVIDIA H100 80GB HBM3, 81559, 580.65.06, 9.0")
    assert found == "NVIDIA H100 80GB HBM3, 80 GiB, driver 580.65.06, sm 9.0"
    # it shares the processor's memory
    shared = "NVIDIA GB10, memory unknown, driver 580.65.06, sm 12.1"
    assert gpu_of("NVIDIA GB10, [N/A], 580.65.06, 12.1") == shared
    here = dict(this_machine().facts)
    assert f"{usable_cores()} cores" in here["processor"]
    assert "torch" in here["versions"]
    assert here["GPU"] == "none"


@pytest.mark.parametrize(
    ("listing", "known"),
    [
        (
            "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f amx_bf16\nflags\t: x\n",
            ("avx2", "fma", "avx512f", "amx_bf16"),
        ),
        ("Features\t: fp asimd sve", ("asimd", "sve")),
        ("", ()),
    ],
)
def test_instructions_that_kernels_choose_by(listing, known):
    assert instruction_sets(listing) == known
