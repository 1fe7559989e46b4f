"""SIGTERM: what is to be written is, and then the process ends by the signal, whatever a library's threads do."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from launch.run.termination import stop_in_order
from tests.support.runs import environment

COMMAND = """
import atexit, os, signal, sys
from launch.commands import cli
from launch.run.termination import stop_in_order

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


@pytest.mark.parametrize("more", [(), ("--debug",)])
def test_the_signal_is_how_the_process_ends(more: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *more], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert (done.stdout, done.stderr) == ("written\n", "stopped; the same command resumes\n")


def test_another_thread_leaves_the_handler_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=stop_in_order)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
