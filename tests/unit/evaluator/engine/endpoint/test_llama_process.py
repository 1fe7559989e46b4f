"""llama.cpp's server as a child: however it starts, it ends with its parent."""

import subprocess
import sys

import psutil
import pytest

from evaluator.core.errors import EngineError
from evaluator.engine.endpoint.llama_process import LlamaProcess

SCRIPT = """
from pathlib import Path
from evaluator.engine.endpoint.llama_process import LlamaProcess
LlamaProcess(Path("a.gguf"), 64, 1)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A llama-server of this shell script."""

    def write(script):
        file = tmp_path / "llama-server"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return write


def test_a_failed_start_is_named(program, tmp_path, monkeypatch):
    """By llama.cpp's own line, and whatever the environment says."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "7")
    lines = "echo loading; echo 'error: no such architecture' >&2; echo bye >&2"
    program(f'echo "$@" $LLAMA_ARG_CTX_SIZE. > {tmp_path}/arguments; {lines}; exit 7')
    with pytest.raises(EngineError, match="ended with status 7; error: no such arch"):
        LlamaProcess(tmp_path / "a.gguf", 64, 1, quiet=True)
    arguments = (tmp_path / "arguments").read_text()
    assert "--ubatch-size 512" in arguments
    assert arguments.endswith("--check-tensors .\n")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("ggml.c:7: GGML_ASSERT(n > 0) failed", "ggml.c:7: GGML_ASSERT(n > 0) failed"),
        ("", "bye"),
    ],
)
def test_an_aborted_start_is_named(program, tmp_path, line, shown):
    """By the failed assertion, not by the backtrace below it."""
    program(f"echo '{line}' >&2; echo bye >&2; kill -ABRT $$")
    with pytest.raises(EngineError) as raised:
        LlamaProcess(tmp_path / "a.gguf", 64, 1, quiet=True)
    assert str(raised.value).endswith(f"ended with status -6; {shown}")


def test_a_hung_start_leaves_nothing(program, tmp_path):
    """The run ends an engine whose load hangs (load_seconds)."""
    pipe = tmp_path / "pid"
    program(f"echo $$ > {pipe}.part && mv {pipe}.part {pipe}; exec sleep 600")
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT])
    while not pipe.exists():
        assert parent.poll() is None
    server = psutil.Process(int(pipe.read_text()))
    assert server.parent().parent().pid == parent.pid
    parent.kill()
    parent.wait()
    server.wait(timeout=60)
