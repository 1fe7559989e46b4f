"""One witness, heard in a process of its own::

    python -m launch.doctor.hearing NAME BRIEF ANSWER

BRIEF and ANSWER are pickles that this program has written for itself, in a temporary folder of its own.
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
from launch.doctor.evidence import Statement
from launch.doctor.witnesses import WITNESSES, Brief, Witness, statement_of

_ROOT = Path(__file__).resolve().parents[2]
_DEFAULTS = {
    "OMP_NUM_THREADS": str(max(1, usable_cores() - 1)),  # as many as a run gives a single engine
    "VLLM_LOGGING_LEVEL": "INFO",  # as in a run: which runner, graphs and kernels vLLM chose
}
_SECONDS = 600  # a witness that has not answered by then hangs


def hear(witness: Witness, brief: Brief) -> Statement | str:
    """What a witness says, or in one line why it says nothing; its output goes to a log."""
    asked, said = (brief.scratch / f"{witness.name}.{end}" for end in ("brief", "answer"))
    log = brief.logs / f"{witness.name}.log"
    asked.write_bytes(pickle.dumps(brief))
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "launch.doctor.hearing", witness.name, str(asked), str(said)]
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
            return f"no answer after {_SECONDS} s"
        finally:  # also of what it may have left behind
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not said.exists():
        return f"its process ended with {_ending(process.returncode)}{_last_line(log)}"
    answer: Statement | str = pickle.loads(said.read_bytes())
    return answer


def _ending(code: int) -> str:
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {one_line(lines[-1])}" if lines else ""


def main() -> None:
    name, asked, said = sys.argv[1:]
    warnings.simplefilter("ignore")
    brief: Brief = pickle.loads(Path(asked).read_bytes())
    answer: Statement | str
    try:
        answer = statement_of(next(each for each in WITNESSES if each.name == name), brief)
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer = f"{type(error).__name__}: {one_line(error)}"
    written = Path(f"{said}.writing")
    written.write_bytes(pickle.dumps(answer))
    written.replace(said)


if __name__ == "__main__":
    main()
