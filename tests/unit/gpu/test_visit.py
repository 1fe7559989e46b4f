"""A visit runs its list whatever its steps do, here commands of a shell; its cards,
its summary, and who waits."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import environment, run_main
from tests.gpu import agree
from tests.gpu import visit as module
from tests.gpu.__main__ import collected
from tests.gpu.steps import TESTS, TINY, Step, read, steps
from tests.gpu.visit import variables
from tests.support.doctor import CPU, GPU
from tests.support.requirements import ROOT

# a child of its group, and one outside
HANGS = 'sleep 600 & one=$!; setsid sleep 600 & echo $$ $one $! > "$0"; wait'
BRINGS = 'sleep 1; mkdir "$0"; touch "$0/late_library.py"'


def shell(name, script, *arguments, seconds=60, **fields):
    return Step(name, seconds, ["sh", "-c", script, *map(str, arguments)], **fields)


def called(monkeypatch, *arguments, machine=GPU, listed=()):
    monkeypatch.setattr(module, "_MOST", 8)
    monkeypatch.setattr(module, "_BEGIN_SECONDS", 0.2)
    monkeypatch.setattr(module, "this_machine", lambda: machine)
    monkeypatch.setattr(module, "steps", lambda out, scratch, **_: list(listed))
    monkeypatch.setattr(module, "stop_in_order", lambda: None)
    monkeypatch.setattr(sys, "argv", ["visit", *map(str, arguments)])
    try:
        run_main(module.main)
    except SystemExit as ended:
        return ended.code
    return 0


def alive(file):
    found = [int(pid) for pid in file.read_text().split()]
    return [
        pid
        for pid in found
        if psutil.pid_exists(pid)
        and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def until(condition):
    while not condition():
        time.sleep(0.05)


def test_visit_runs_the_whole_list(tmp_path, monkeypatch, capsys):
    """With a step that fails, one that hangs, one that waits for a library, and all
    that depends on them."""
    out, library = tmp_path / ("long" * 30) / "out", tmp_path / "library"
    monkeypatch.syspath_prepend(str(library))
    pids, orphan, mended = tmp_path / "pids", tmp_path / "orphan", tmp_path / "mended"
    listed = [
        shell("imports", "true"),
        shell("fails", 'echo "one | two" >&2; test -e "$0" || exit 3', mended),
        shell("hangs", HANGS, pids, seconds=3),
        shell("dies", 'setsid sleep 600 & echo $! > "$0"; kill -9 $$', orphan),
        shell("model", 'echo x >> "$0"', tmp_path / "model"),
        shell("large", 'echo "wrote $0/large"', out, after="model"),
        shell("never", "true", after="fails"),
        shell("doctor", "true", module="late_library"),
        shell("brings", BRINGS, library),
        shell("gpu", "true", gpu=True),
        shell("pass", "true", timed=True),
        shell("host", "true", timed=True),
    ]
    assert called(monkeypatch, out, "--rehearse", machine=CPU, listed=listed) == 1
    cards = read(out, [step.name for step in listed])
    expected = dict.fromkeys(cards, "passed")
    expected |= {
        "fails": "failed",
        "hangs": "failed",
        "dies": "failed",
        "never": "not run",
        "gpu": "skipped",
    }
    assert {name: card.state for name, card in cards.items()} == expected
    assert len(cards) == len(listed)
    assert (cards["fails"].reason, cards["hangs"].reason) == (
        "exit code 3: one | two",
        "exceeded 3 s",
    )
    assert alive(pids) == alive(orphan) == []
    starts = {name: card.at - card.seconds for name, card in cards.items()}
    assert starts["hangs"] < cards["brings"].at <= starts["doctor"] + 0.3
    assert (
        max(cards[name].at for name in ("hangs", "doctor", "large"))
        <= starts["pass"] + 0.3
    )
    assert cards["pass"].at <= starts["host"] + 0.3
    assert cards["large"].last_lines == ["wrote OUT/large"]
    summary = (out / "summary.md").read_text()
    assert r"exit code 3: one \| two |" in summary
    assert "## fails\n\n```\none | two\n```" in summary
    mended.touch()
    capsys.readouterr()
    assert (
        called(
            monkeypatch,
            out,
            "--rehearse",
            "--resume",
            "--only",
            "fails,large,never",
            listed=listed,
        )
        == 0
    )
    assert (
        capsys.readouterr().out.splitlines()[0].startswith("2 steps, at most 840 s; ")
    )
    assert (tmp_path / "model").read_text() == "x\n"
    # a rehearsal's card is none of a visit
    assert called(monkeypatch, out, "--only", "large", listed=listed) == 0
    assert (tmp_path / "model").read_text() == "x\nx\n"  # temporary files are gone
    (tmp_path / "mended").unlink()
    failing = [
        replace(listed[1], name="imports"),
        shell("long", "sleep 600"),
        listed[-1],
    ]
    assert called(monkeypatch, out, listed=failing) == 1
    assert {read(out, [name])[name].reason for name in ("long", "host")} == {
        "step imports did not pass"
    }


def test_timed_steps_get_their_time(tmp_path, monkeypatch):
    """After 55 % of it; what is left at its end did not run."""
    listed = [shell("slow", "sleep 600"), shell("pass", "true", timed=True), shell("demo", "true", module="no_library"),
              shell("host", "sleep 600", timed=True)]  # fmt: skip
    assert called(monkeypatch, tmp_path, "--until", "3", listed=listed) == 1
    reasons = {
        name: card.reason
        for name, card in read(tmp_path, ["slow", "pass", "demo", "host"]).items()
    }
    assert reasons == {
        "slow": "the timed steps had to begin",
        "pass": None,
        "demo": "Python did not find no_library",
        "host": "there was no time left",
    }


def test_waiting_ends_with_the_visit(tmp_path, monkeypatch, capsys):
    """A visit that is stopped ends its steps with all that they started, and writes
    their cards."""
    out, pids = tmp_path / "out", tmp_path / "pids"
    script = (
        "import sys; from tests.gpu import visit; from tests.support.doctor import GPU;"
        " Step = visit.Step;hangs, out, pids = sys.argv[1:]; sys.argv[1:] = [out];"
        " visit._MOST = 8; visit.this_machine = lambda: GPU;visit.steps = lambda *_,"
        " **__: [Step('first', 60, ['true']), Step('hangs', 600, ['sh', '-c', hangs,"
        " pids])];visit.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, HANGS, str(out), str(pids)], env=environment()
    )
    until(
        lambda: (
            (out / "first.json").exists()
            and pids.exists()
            and len(pids.read_text().split()) == 3
        )
    )
    listed = [shell("first", "true"), shell("hangs", "true")]
    assert called(monkeypatch, out, "--wait", "first", listed=listed) == 0
    assert "| hangs | runs |" in capsys.readouterr().out
    assert (
        called(monkeypatch, out, "--wait", "all", "--seconds", "0.3", listed=listed)
        == 0
    )
    assert capsys.readouterr().out.endswith("the visit goes on\n")
    assert called(monkeypatch, out, listed=listed) == 2
    assert capsys.readouterr().err == f"error: {out}: another visit writes there\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() != 0
    assert alive(pids) == []
    assert (
        called(
            monkeypatch, out, "--wait", "first,hangs", "--seconds", "600", listed=listed
        )
        == 1
    )
    output = capsys.readouterr().out
    assert "| hangs | failed |" in output
    assert output.endswith("no visit writes here now\n")


@pytest.mark.parametrize(
    ("arguments", "machine", "said"),
    [
        (
            ["{}/new", "--only", "imprts"],
            GPU,
            "unknown step 'imprts'; did you mean 'imports'? (known:",
        ),
        (["{}/file"], GPU, "{}/file: File exists"),
        (
            ["{}/new"],
            CPU,
            "no NVIDIA GPU answers on this machine (nvidia-smi): --rehearse runs",
        ),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, machine, said):
    (tmp_path / "file").touch()
    listed = [shell("imports", 'touch "$0"', tmp_path / "ran")]
    filled = [each.format(tmp_path) for each in arguments]
    assert called(monkeypatch, *filled, machine=machine, listed=listed) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith(f"error: {said.format(tmp_path)}")
    assert (errors.count("\n"), output) == (1, "")
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("kept", ["", "/kept"])
def test_steps_write_to_given_folders(tmp_path, monkeypatch, kept):
    monkeypatch.setenv("TRITON_CACHE_DIR", kept)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    own = variables(tmp_path / "out", tmp_path)
    assert own["TRITON_CACHE_DIR"] == (kept or str(tmp_path / "out" / "triton"))
    assert own["TMPDIR"] == own["XDG_CACHE_HOME"] == str(tmp_path)
    assert (own["PYTHONPATH"].split(os.pathsep)[-1], own["HF_HUB_OFFLINE"]) == (
        "/mine",
        "1",
    )


def test_steps_name_what_exists():
    listed = steps(Path("/out"), Path("/scratch"), tiny=False, gpu=True)
    names = [step.name for step in listed]
    assert len(set(names)) == len(names)
    assert {step.after for step in listed} - {None} <= set(names)
    assert set(TINY) == set(agree.TINY)


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS.values())
def test_steps_name_tests_that_exist(test):
    assert collected([f"tests/gpu/{test}"])[0].startswith(f"tests/gpu/{test}")


def test_make_installs_nothing_beside_a_kit(tmp_path):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    # A make that runs the tests would announce its folder in the output.
    command = [
        "make",
        "-n",
        "--no-print-directory",
        "gpu-card",
        "PYTHON=python3.x",
        "OUT=out",
    ]
    kit, own = (
        environment(PYTHONPATH=f"{tmp_path / 'other'}:{tmp_path}"),
        environment(PYTHONPATH=""),
    )
    done = subprocess.run(
        command, env=kit, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1:] == ["python3.x -m tests.gpu.visit out"]
    done = subprocess.run(
        [*command, "VENV=none"],
        env=own,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "none/bin/python -m pip install" in done.stdout
