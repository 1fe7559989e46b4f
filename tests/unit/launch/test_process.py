"""SIGTERM: what is to be written is, and then the process ends by the signal,
whatever a library's threads do."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from launch.process import noting_stop, stop_in_order
from tests.support.runs import environment

COMMAND = """
import atexit, os, signal, sys
from launch.commands import cli
from launch.process import stop_in_order

atexit.register(os.abort)  # as a library may, while the interpreter ends

def work(**_):
    stop_in_order()
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit as stop:
        assert stop.code == signal.SIGTERM
        print("written")
        raise SystemExit(1)  # what comes out of Ray

cli.app = work
cli.main()
"""


# A library that handles the signal itself: `then` says what it makes of it.
NOTED = """
import contextlib, signal
from launch.commands import cli
from launch.process import check_stop, noting_stop, stop_in_order

def handle(number, frame):
    signal.alarm(1)
    raise SystemExit(number)

def library(then):
    signal.signal(signal.SIGTERM, handle)
    if then == "nothing":
        with contextlib.suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        return
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit:
        raise RuntimeError("no answer")

def work(**_):
    stop_in_order()
    with noting_stop():
        library({then!r})
    assert signal.alarm(0) == 0
    print("started")
    check_stop()
    print("not stopped")

cli.app = work
cli.main()
"""


@pytest.mark.parametrize(
    ("program", "more", "printed"),
    [
        (COMMAND, [], "written\n"),
        (COMMAND, ["--debug"], "written\n"),
        (NOTED.format(then="nothing"), [], "started\n"),
        (NOTED.format(then="another error"), [], ""),
    ],
)
def test_signal_ends_the_process(program, more, printed) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, *more],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert (done.stdout, done.stderr) == (
        printed,
        "stopped; the same command resumes\n",
    )


def test_other_thread_keeps_handler() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with noting_stop():
            pass
        with pytest.raises(ValueError, match="as it was"), noting_stop():
            raise ValueError("as it was")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.set_wakeup_fd(-1) == -1
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop_in_order)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before


LEAVES = """
import sys
from pathlib import Path
from launch.process import leave

left = leave(Path("run/logs/detached.log"))
print("early")
if {refused}:
    print("error: no", file=sys.stderr)
    sys.exit(2)
Path("run").mkdir()
left('{{"process": 1}}')
print("later")
print("an error", file=sys.stderr)
"""


@pytest.mark.parametrize("refused", [False, True])
def test_child_goes_on_alone(tmp_path, refused):
    """The parent's pipes close, although the child may still work."""
    program = [sys.executable, "-c", LEAVES.format(refused=refused)]
    done = subprocess.run(
        program, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    log = tmp_path / "run" / "logs" / "detached.log"
    if refused:
        assert (done.returncode, done.stdout, done.stderr) == (2, "", "error: no\n")
        assert not log.exists()
        return
    told = '{"process": 1}\n'
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")
    # the child may still be at it
    while "later" not in log.read_text():
        time.sleep(0.01)
    assert log.read_text().startswith("early\n")


WAITS = """
import os, time
from pathlib import Path
from launch.process import leave

leave(Path("run/logs/detached.log"))
Path("child.part").write_text(str(os.getpid()))
Path("child.part").rename("child")
time.sleep(600)
"""


def test_child_ends_with_a_parent_that_waits(tmp_path):
    program = [sys.executable, "-c", WAITS]
    parent = subprocess.Popen(
        program, env=environment(), cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    while not (tmp_path / "child").exists():
        time.sleep(0.01)
    parent.terminate()
    parent.wait()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)
