"""Executes one of the doctor's runs in a separate process::

    python -m launch.doctor.process NAME INPUTS RESULT

INPUTS and RESULT are pickles in a temporary folder that only this program writes.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path

from evaluator.core.errors import one_line
from evaluator.core.isolated import run_module
from evaluator.engine.processor import usable_cores
from launch.doctor.results import RunResult
from launch.doctor.runs import RUNS, Inputs, Run, execute_here

_DEFAULTS = {
    "OMP_NUM_THREADS": str(max(1, usable_cores() - 1)),  # as for a single engine in an evaluation
    "VLLM_LOGGING_LEVEL": "INFO",  # as in an evaluation: which runner, graphs and kernels vLLM chose
}
_SECONDS = 600  # without a result by then, the run hangs


def run_apart(run: Run, inputs: Inputs) -> RunResult | str:
    """The result of a run, or one line that explains why there is none. A log file keeps the run's output."""
    given, written = (inputs.scratch / f"{run.name}.{end}" for end in ("inputs", "result"))
    log = inputs.logs / f"{run.name}.log"
    given.write_bytes(pickle.dumps(inputs))
    arguments = [run.name, str(given), str(written)]
    ending = run_module("launch.doctor.process", arguments, log, defaults=_DEFAULTS, timeout=_SECONDS)
    if not written.exists():
        return f"its process {ending.how}"
    result: RunResult | str = pickle.loads(written.read_bytes())  # noqa: S301
    return result


def main() -> None:
    name, given, written = sys.argv[1:]
    warnings.simplefilter("ignore")
    inputs: Inputs = pickle.loads(Path(given).read_bytes())  # noqa: S301
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
