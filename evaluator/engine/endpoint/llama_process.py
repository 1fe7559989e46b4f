"""llama.cpp's server for one GGUF file, as a child of the process of an engine.

    python -m evaluator.engine.endpoint.llama_process FILE CONTEXT THREADS SLOTS

prints the server's address and serves until its standard input ends. So it ends with
the process that started it, however that ends, and if the server never starts. How long
a start may take is the run's `load_seconds`."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

from evaluator.core.errors import EngineError, InputError, one_line, printable

# Requests at a time. More share batches, which changes the numbers of some file types.
SLOTS = 1
# Tokens of a batch that the program sees, and that it computes: llama.cpp's defaults,
# which the environment may change. The second changes numbers.
BATCH, COMPUTED = 2048, 512
# tokens of a slot: at its last one the server calls an answer truncated
_SPARE = 8
_START_SECONDS = 1800
_KEPT = 40  # of its last lines
_PROGRAM = "llama-server"  # of llama.cpp
_ADDRESS = "listening on "
_FAILURE = re.compile(r"error|invalid|GGML_ASSERT")


def check_here() -> None:
    """Raises InputError where no llama.cpp is installed."""
    if shutil.which(_PROGRAM) is None and find_spec("xllamacpp") is None:
        raise InputError(
            "a GGUF file needs llama.cpp: pip install 'resurface[gguf]', or put"
            f" {_PROGRAM} on the PATH"
        )


class LlamaProcess:
    """A running server. Raises EngineError if it does not start."""

    def __init__(
        self,
        file: Path,
        context: int,
        threads: int,
        slots: int = SLOTS,
        *,
        quiet: bool = False,
    ) -> None:
        """`context`: tokens of one request. Its own lines go to our standard error, or
        nowhere (`quiet`); one of them is in an error."""
        check_here()
        self.package = _PROGRAM
        if shutil.which(_PROGRAM) is None:
            self.package = f"xllamacpp {version('xllamacpp')}"
        module = "evaluator.engine.endpoint.llama_process"
        numbers = [str(context), str(threads), str(slots)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(file), *numbers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # its variables are options, which change numbers
            env={
                name: value
                for name, value in os.environ.items()
                if not name.startswith("LLAMA_ARG_")
            },
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        said: deque[str] = deque(maxlen=_KEPT)
        hear = threading.Thread(target=self._hear, args=(said, quiet), daemon=True)
        hear.start()
        self._hearing = hear
        line = self._process.stdout.readline()
        if not line.startswith(_ADDRESS):
            self.close()
            failures = [each for each in said if _FAILURE.search(each)]
            last = (failures[:1] or [*said][-1:] or ["it says nothing"])[0]
            raise EngineError(
                f"{file}: llama.cpp does not serve it: {one_line(line)}; {last}"
            )
        self.url = line.removeprefix(_ADDRESS).strip()

    def _hear(self, said: deque[str], quiet: bool) -> None:
        """Keep llama.cpp's last lines, and pass them on."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            said.append(printable(one_line(line)))
            if not quiet:
                sys.stderr.write(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._hearing.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _embedded(file: str, context: int, threads: int, slots: int) -> tuple[str, Any]:
    """The address of a server in this process, and the server."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = file, _free_port()
    params.n_ctx, params.n_parallel = (context + _SPARE) * slots, slots
    params.n_batch, params.n_ubatch = BATCH, COMPUTED
    params.cpuparams.n_threads = threads
    params.check_tensors = True
    server = xllamacpp.Server(params)
    return str(server.listening_address), server


def _child(file: str, context: int, threads: int, slots: int) -> tuple[str, Any]:
    """The address of a program's server, and its process."""
    port = _free_port()
    command = [_PROGRAM, "--model", file, "--port", str(port)]
    command += ["--ctx-size", str((context + _SPARE) * slots), "--parallel", str(slots)]
    command += ["--batch-size", str(BATCH), "--ubatch-size", str(COMPUTED)]
    command += ["--threads", str(threads), "--check-tensors"]
    process = subprocess.Popen(command, stdout=sys.stderr)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None:
        if time.monotonic() > until:
            raise EngineError(f"{_PROGRAM} is not ready after {_START_SECONDS} s")
        try:
            health = httpx.get(f"{url}/health", timeout=5, trust_env=False)
            health.raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return url, process
    raise EngineError(f"{_PROGRAM} ended with status {process.returncode}")


def _end_with_parent() -> None:
    sys.stdin.read()
    for child in psutil.Process().children():
        child.kill()
    os._exit(0)  # a server in this process would wait for its requests


def main() -> None:
    file, *numbers = sys.argv[1:]
    # whatever the library prints goes to standard error
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    watch = threading.Thread(target=_end_with_parent, daemon=True)
    watch.start()
    start = _embedded if shutil.which(_PROGRAM) is None else _child
    try:
        address, _server = start(file, *map(int, numbers))
    except Exception as error:
        raise SystemExit(print(one_line(error), file=answer, flush=True)) from error
    print(f"{_ADDRESS}{address}", file=answer, flush=True)
    watch.join()


if __name__ == "__main__":
    main()
