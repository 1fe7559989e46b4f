"""vLLM's V2 model runner, the one of GPUs, in processes on a CPU.

    python -m tests.support.v2 COMMAND...      runs a command, and every process that it
                                               starts, on that runner
    python -m pytest --runner V2               runs the tests that are marked `runners`
    or `v2` on it

Triton lies in a folder of its own (`make install` puts it there): with it on the path,
vLLM chooses V2.
"""

import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.devices import vllm_serves_cpus

HOOK = Path(__file__).with_name("v2_on_cpu")
TRITON = Path(os.environ.get("RESURFACE_TRITON") or Path(sys.prefix) / "triton")


def missing(triton: Path = TRITON) -> str | None:
    """Why the V2 runner cannot run here, in one line; None if it can."""
    if not vllm_serves_cpus():
        return "the V2 runner on a CPU needs vLLM's CPU build, which is not installed"
    if not (triton / "triton" / "__init__.py").is_file():
        return (
            f"the V2 runner on a CPU needs Triton, which is not in {triton} (make"
            " install)"
        )
    if not (triton / "triton" / "runtime" / "interpreter.py").is_file():
        return (
            f"the V2 runner on a CPU needs Triton's interpreter, which {triton} lacks"
        )
    return None


def environment(triton: Path = TRITON) -> dict[str, str]:
    """What a process needs in its environment, besides what it has."""
    path = filter(None, [str(HOOK), str(triton), os.environ.get("PYTHONPATH")])
    return {
        "PYTHONPATH": os.pathsep.join(path),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        # with two workers, inductor would call the pretended driver
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two workers on two cores
    }


def enter() -> None:
    """Make this process run V2 from now on, before vLLM is imported here, and every
    process that it starts."""
    assert "vllm" not in sys.modules, "vLLM is imported already"
    os.environ.update(environment())
    sys.path[:0] = [str(HOOK), str(TRITON)]
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")


def main(command: Sequence[str]) -> int:
    why = missing() or (
        None
        if command
        else "no command is given: python -m tests.support.v2 COMMAND..."
    )
    try:
        if why is None:
            return subprocess.run(
                command, env=os.environ | environment(), check=False
            ).returncode
    except OSError as error:
        why = f"{command[0]}: {error.strerror}"
    print(f"error: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
