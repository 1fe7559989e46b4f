"""A night runs its list whatever its steps do, here commands of a shell; its list, its cards and its summary."""

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import environment, run_main
from evaluator.core.errors import InputError
from evaluator.engine.config import EngineConfig
from tests.gpu import night as module
from tests.gpu.__main__ import collected
from tests.gpu.night import check_model, night, run, variables
from tests.gpu.steps import TESTS, VARIANTS, Card, Step, markdown, read, steps
from tests.support.doctor import CPU, GPU

HANGS = 'sleep 600 & one=$!; setsid sleep 600 & echo $$ $one $! > "$0"; wait'  # a child of its group, and one outside


def shell(name, script, *arguments, seconds=600, needs=()):
    return Step(name, seconds, ["sh", "-c", script, *map(str, arguments)], needs)


def ran(steps, out, machine=GPU):
    (out / "night.tmp").mkdir(exist_ok=True)
    return night(steps, steps, machine, out)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pids(file):
    return [int(pid) for pid in file.read_text().split()]


def test_a_failed_step_does_not_stop_the_list_but_failed_imports_do(tmp_path, capsys):
    steps = [shell("one", "echo why >&2; exit 3"), shell("two", "echo table; echo '{\"ratio\": 2}'; echo done")]
    assert not ran(steps, tmp_path)
    cards = read(tmp_path, ["one", "two"])
    assert (cards["one"].state, cards["one"].return_code, cards["one"].reason) == ("failed", 3, "exit code 3: why")
    assert (cards["two"].state, cards["two"].result, cards["two"].reason) == ("passed", {"ratio": 2}, None)
    assert cards["two"].last_lines == ["table", '{"ratio": 2}', "done"]
    assert (tmp_path / "one.log").read_text() == "why\n"
    assert re.search(r"\| one \| failed \| \d+ \| exit code 3: why \|", (tmp_path / "night.md").read_text())
    assert "one: failed, 0 s: exit code 3: why" in capsys.readouterr().out
    assert not (tmp_path / "night.tmp").exists()
    ran([shell("model", "true # 0.6b")], tmp_path)
    with pytest.raises(InputError, match="it has the cards of another --shape; name another folder"):
        check_model([shell("model", "true # 8b")], tmp_path)
    assert not ran([shell("imports", "echo No module named vllm; exit 1"), shell("three", "true")], tmp_path)
    assert "| three | not run |" in (tmp_path / "night.md").read_text()


@pytest.mark.parametrize("ended", ["by its limit", "by a signal"])
def test_a_step_ends_with_all_that_it_started(tmp_path, ended):
    script = (
        "import sys; from pathlib import Path; from tests.gpu.night import *; stop_in_order();"
        "run(Step('one', 600, ['sh', '-c', *sys.argv[2:]]), Path(sys.argv[1]))"
    )
    file = tmp_path / "pids"
    if ended == "by a signal":
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), HANGS, str(file)], env=environment())
        while not file.exists() or len(pids(file)) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait() != 0
    else:
        for seconds in (1, 10, 100):  # a busy machine may need more than one to write the file
            card = run(shell("one", HANGS, file, seconds=seconds), tmp_path)
            if file.exists():
                break
        assert (card.state, card.return_code, card.reason) == ("timed out", None, f"exceeded {seconds} s")
        assert len(pids(file)) == 3
    assert not any(alive(pid) for pid in pids(file))


def called(monkeypatch, *arguments, machine=GPU, listed=()):
    monkeypatch.setattr(module, "this_machine", lambda: machine)
    monkeypatch.setattr(module, "steps", lambda out, **_: list(listed))
    monkeypatch.setattr(module, "stop_in_order", lambda: None)
    monkeypatch.setattr(sys, "argv", ["night", *map(str, arguments)])
    try:
        run_main(module.main)
    except SystemExit as ended:
        return ended.code
    return 0


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LONGEST", 1000)
    return tmp_path / "night"


def test_only_named_steps_or_what_has_not_passed_run_again_and_the_summary_keeps_the_others(place, monkeypatch):
    listed = [
        shell("one", 'echo x >> "$0"', place / "one"),
        shell("model", 'echo x >> "$0"', place / "model"),  # its file was removed at the end
        shell("two", 'test -e "$0"', place / "mended", needs=("model",)),
    ]
    assert called(monkeypatch, "--out", place, listed=listed) == 1
    (place / "mended").touch()
    assert called(monkeypatch, "--out", place, "--resume", listed=listed) == 0
    assert [(place / name).read_text() for name in ("one", "model")] == ["x\n", "x\nx\n"]
    assert [card.state for card in read(place, ["one", "model", "two"]).values()] == ["passed"] * 3
    assert called(monkeypatch, "--out", place, listed=listed) == 0
    assert (place / "one").read_text() == "x\nx\n"
    listed = [shell(name, 'echo x >> "$0"', place / f"{name}.ran") for name in ("one", "two", "three", "four")]
    assert called(monkeypatch, "--out", place, "--only", "one", listed=listed) == 0
    assert called(monkeypatch, "--out", place, "--only", "two,three", "--only", "three", listed=listed) == 0
    assert sorted(path.name for path in place.glob("*.ran")) == ["one.ran", "three.ran", "two.ran"]
    summary = (place / "night.md").read_text()
    assert summary.count("| passed |") == 3
    assert "| four | not run |" in summary


@pytest.mark.parametrize(
    ("arguments", "machine", "said"),
    [
        (["--out", "{}/night", "--only", "imprts"], GPU, "unknown step 'imprts'; did you mean 'imports'? (known:"),
        (["--out", "{}/file"], GPU, "{}/file: --out: Not a directory"),
        ([], GPU, "the following arguments are required: --out"),
        (["--out", "{}/night"], CPU, "no NVIDIA GPU answers on this machine (nvidia-smi): --tiny rehearses"),
    ],
)
def test_bad_input_is_one_line_and_runs_nothing(place, monkeypatch, capsys, arguments, machine, said):
    folder = place.parent
    (folder / "file").touch()
    filled = [each.format(folder) for each in arguments]
    listed = [shell("imports", 'touch "$0"', folder / "ran")]
    assert called(monkeypatch, *filled, machine=machine, listed=listed) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith(f"error: {said.format(folder)}")
    assert (errors.count("\n"), output) == (1, "")
    assert not (folder / "ran").exists()
    assert not place.exists()


def test_the_gpu_is_watched_beside_each_pass(tmp_path, monkeypatch):
    fake = tmp_path / "bin" / "nvidia-smi"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "asked: $*"; touch "$WATCHED"; exec sleep 600\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("WATCHED", str(tmp_path / "watched"))
    until = 'while ! test -e "$WATCHED"; do sleep 0.05; done'
    assert run(shell("pass-decode", until), tmp_path).state == "passed"
    assert (tmp_path / "pass-decode.dmon.log").read_text() == "asked: dmon -s u\n"
    run(shell("score", "true"), tmp_path)
    assert not (tmp_path / "score.dmon.log").exists()


@pytest.mark.parametrize("kept", ["", "/kept"])
def test_a_step_writes_below_the_folder_and_kernels_where_they_are_kept(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("TRITON_CACHE_DIR", kept)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    own = variables(tmp_path)
    assert own["TRITON_CACHE_DIR"] == (kept or str(tmp_path / "triton"))
    assert own["TMPDIR"] == own["XDG_CACHE_HOME"] == str(tmp_path / "night.tmp")
    assert (own["PYTHONPATH"].split(os.pathsep)[-1], own["HF_HUB_OFFLINE"]) == ("/mine", "1")


TIMED = {"ratio": 3.0, "ratio_min": 2.5, "ratio_max": 3.5, "ours_s": 1.0, "theirs_s": 3.0, "agreement": "all alike"}


def passed(step, **fields):
    return Card(step=step, state="passed", seconds=12.3, return_code=0, **fields)


def test_the_summary_has_the_machine_and_a_row_of_each_step():
    cards = {
        "score": passed("score", result=TIMED),
        "prune": Card(step="prune", state="failed", reason="exit code 1: out of memory | none", seconds=3.0),
        "tests": Card(step="tests", state="skipped", reason="no GPU"),
    }
    lines = markdown(GPU, ["score", "prune", "tests", "swap"], cards).splitlines()
    assert lines[0] == "# a GPU: a night"
    assert "| GPU 0 | a GPU, 80 GiB, driver 580.1, sm 9.0 |" in lines
    assert lines[-4:] == [
        "| score | passed | 12 | ours 1.00 s, theirs 3.00 s, ratio 3.00 (2.50-3.50); all alike |",
        r"| prune | failed | 3 | exit code 1: out of memory \| none |",
        "| tests | skipped | 0 | no GPU |",
        "| swap | not run |  |  |",
    ]


def test_a_file_that_is_no_card_counts_as_none(tmp_path):
    card = passed("pass", command=["sh"], last_lines=["one"], result=TIMED)
    (tmp_path / "pass.json").write_text(json.dumps(dataclasses.asdict(card)))
    (tmp_path / "score.json").write_text('{"step": "sc')
    (tmp_path / "swap.json").write_text("[]")
    (tmp_path / "prune.json").write_text('{"colour": "red"}')
    assert read(tmp_path, ["pass", "score", "swap", "prune", "absent"]) == {"pass": card}


ON_A_GPU = steps(Path("/nowhere"), shape="0.6b", tiny=False, gpu=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_pass_is_one_setting_of_an_engine(name):
    (step,) = (step for step in ON_A_GPU if step.name == name)
    settings = json.loads(step.command[step.command.index("--engine-args") + 1])
    config = EngineConfig(**settings)
    assert {field: getattr(config, field) for field in VARIANTS[name]} == VARIANTS[name]
    assert len(VARIANTS[name]) == (name != "pass")
    assert config.gpu_memory_utilization < 0.5  # the other side has an engine on the same GPU


@pytest.mark.slow
def test_the_tests_that_it_names_exist():
    named = [f"tests/gpu/test_engine_gpu.py::{test}" for test in TESTS.values()]
    assert collected(named) == named


@pytest.mark.long
def test_every_command_is_a_benchmark_with_options_that_it_knows(tmp_path):
    for step in steps(tmp_path, shape="0.6b", tiny=False, gpu=True):
        if "model" in step.needs:
            assert str(tmp_path / "night.tmp" / "model") in str(module.run(step, tmp_path).reason), step.name
