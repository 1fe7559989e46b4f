"""An answer that needs nothing heavy imports nothing heavy: seconds that a typing mistake must not cost."""

import json
import subprocess
import sys

import pytest

from tests.support.checkpoint_files import write
from tests.support.quantised import with_quantisation
from tests.support.runs import environment
from tests.support.synthetic import write_run

HEAVY = ("torch", "transformers", "ray", "vllm", "pandas", "pyarrow", "datasets")
EVAL = ("eval", "--task", "gazetteer", "--out", "x")
WANDA = ("--method", "wanda", "--sparsity", "0.5", "--out", "x")
PROGRAM = """
import json, sys
from launch.commands.cli import main

try:
    main()
except SystemExit as ended:
    print()
    print(json.dumps([ended.code, [name for name in {heavy!r} if name in sys.modules]]))
"""


def typed(*arguments: object) -> tuple[int, list[str], str]:
    """Exit code, which of HEAVY were imported, and standard error of one command."""
    program = PROGRAM.format(heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True, text=True, check=True, env=environment(),
    )  # fmt: skip
    code, imported = json.loads(done.stdout.splitlines()[-1])
    return code, imported, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, ""),
        (("--help",), 0, ""),
        (("doctor", "--dtype", "float33"), 2, "error: unknown --dtype 'float33'; did you mean 'float32'?"),
        (("prune", "bundled", "--method", "wunda", "--out", "x"), 2, "error: unknown --method 'wunda'; did you mean"),
        (("prune", "nowhere", *WANDA), 2, "error: checkpoint nowhere: no such directory"),
        (("prune", "bundled", *WANDA, "--calibration", "text:no"), 2, "error: no: calibration file cannot be read"),
        (("eval", "bundled", "--task", "gazetteer", "--probes", "gredy", "--out", "x"), 2, "error: unknown probe"),
        (("eval", "nowhere", "--task", "gazetteer", "--out", "x"), 2, "error: checkpoint nowhere: no such directory"),
        (
            ("eval", "bundled", "--base", "no/where", "--task", "gazetteer", "--out", "x"),
            *(2, "error: checkpoint no/where: no such directory, and the hub does not give it ("),
        ),
        ((*EVAL, "bundled", "nowhere", "--base", "nowhere"), 2, "error: checkpoint nowhere: no such directory"),
        ((*EVAL, "w8a16"), 2, "error: checkpoint w8a16: W8A16 (gptq): vLLM has no kernel for this scheme"),
        ((*EVAL, "w8a16", "--engine", "torch"), 2, "error: checkpoint w8a16: W8A16 (gptq): engine torch serves no"),
        ((*EVAL, "bundled", "--items", "x"), 2, "error: Invalid value for '--items': Input should be a valid"),
        (("sweep", "nowhere.yaml", "--out", "x"), 2, "error: nowhere.yaml: cannot read the sweep file"),
        (("sweep", "paper", "--dry-run"), 0, ""),
        (("tasks", "mmlu"), 0, ""),
        *(((name,), 0, "") for name in ("tasks", "probes", "methods")),
        (
            ("show-prompt", "--task", "squat", "--model", "bundled"),
            2,
            "error: unknown task 'squat'; did you mean 'squad'?",
        ),
        (("show",), 2, "error: unknown command 'show'; did you mean 'show-prompt'?"),
        (("report", "nowhere"), 2, "error: nowhere: not a run directory"),
        (("status", "nowhere"), 2, "error: nowhere: not a run directory"),
    ],
)
def test_light_answers(arguments, code, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_quantisation(write(tmp_path / "w8a16"), {"quant_method": "gptq", "bits": 8})
    ended, imported, error = typed(*arguments)
    assert (ended, imported) == (code, [])
    assert error.startswith(message) if message else not error  # without arguments: the help alone


def test_a_report_needs_no_engine_and_the_board_no_ray(tmp_path):
    run = write_run(tmp_path, 3, ("dense", "wanda-0.6"))
    code, imported, error = typed("report", run)
    assert (code, error) == (0, "")
    assert not {"torch", "transformers", "ray", "vllm", "datasets"} & set(imported)
    program = "import launch.run.decide.board, launch.run.decide.fleet, sys; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=environment(), check=False).returncode == 0


def test_the_library_of_a_silent_tracker_does_not_delay_the_exit():
    program = f"""import atexit, threading
threading.Thread(target=threading.Event().wait, name="tracking", daemon=True).start()
atexit.register(print, "asked again"){PROGRAM.format(heavy=())}"""
    done = subprocess.run([sys.executable, "-c", program, "tasks", "mmlu"], capture_output=True, text=True, check=True)
    assert ("mmlu" in done.stdout, "asked again" in done.stdout) == (True, False)
