"""One run in a separate process::

    python -m launch.doctor.process NAME INPUTS RESULT

INPUTS and RESULT are pickles in a temporary folder that only this program writes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path

from evaluator.core.errors import one_line
from evaluator.engine.processor import usable_cores
from launch.doctor.results import RunResult
from launch.doctor.runs import RUNS, Inputs, Run, execute_here

_ROOT = Path(__file__).resolve().parents[2]
_DEFAULTS = {
    "OMP_NUM_THREADS": str(max(1, usable_cores() - 1)),  # as an evaluation gives a single engine
    "VLLM_LOGGING_LEVEL": "INFO",  # as in an evaluation: which runner, graphs and kernels vLLM chose
}
_SECONDS = 600  # without a result by then, the run hangs


def run_apart(run: Run, inputs: Inputs) -> RunResult | str:
    """The result of a run, or the reason for its absence in one line. Its output goes to a log."""
    given, written = (inputs.scratch / f"{run.name}.{end}" for end in ("inputs", "result"))
    log = inputs.logs / f"{run.name}.log"
    given.write_bytes(pickle.dumps(inputs))
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "launch.doctor.process", run.name, str(given), str(written)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=_DEFAULTS | os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            process.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return f"no result after {_SECONDS} s"
        finally:  # the whole group: the run may have left processes behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not written.exists():
        return f"its process ended with {_ending(process.returncode)}{_last_line(log)}"
    result: RunResult | str = pickle.loads(written.read_bytes())
    return result


def _ending(code: int) -> str:
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {one_line(lines[-1])}" if lines else ""


def main() -> None:
    name, given, written = sys.argv[1:]
    warnings.simplefilter("ignore")
    inputs: Inputs = pickle.loads(Path(given).read_bytes())
    result: RunResult | str
    try:
        result = execute_here(next(each for each in RUNS if each.name == name), inputs)
    except Exception as error:
        import traceback

        traceback.print_exc()
        result = f"{type(error).__name__}: {one_line(error)}"
    unfinished = Path(f"{written}.writing")
    unfinished.write_bytes(pickle.dumps(result))
    unfinished.replace(written)


if __name__ == "__main__":
    main()
