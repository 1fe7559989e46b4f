"""An answer that needs nothing heavy imports nothing heavy: seconds that a typing
mistake must not cost."""

import json
import subprocess
import sys

from tests.support.checkpoint_files import write
from tests.support.quantised import with_quantisation
from tests.support.runs import environment
from tests.support.synthetic import write_run

HEAVY = ("torch", "transformers", "ray", "vllm", "pandas", "pyarrow", "datasets")
ANSWERS = [
    ("", 2, ""),
    ("--help", 0, ""),
    (
        "prune nowhere --method wanda --sparsity 0.5 --out x",
        2,
        "error: checkpoint nowhere: no such directory",
    ),
    (
        "prune bundled --method wanda --sparsity 0.5 --out x --calibration text:no",
        2,
        "error: no: calibration file cannot be read",
    ),
    (
        "eval nowhere --task gazetteer --out x",
        2,
        "error: checkpoint nowhere: no such directory",
    ),
    (
        "eval bundled --base no/where --task gazetteer --out x",
        2,
        "error: where: checkpoint no/where: no such directory, and the hub does not give it (",
    ),
    (
        "eval w8a16 --task gazetteer --out x",
        2,
        "error: w8a16: checkpoint w8a16: W8A16 (gptq): vLLM has no kernel for this scheme",
    ),
    (
        "eval bundled --task gazetteer --items x --out x",
        2,
        "error: Invalid value for '--items': Input should be a valid",
    ),
    ("sweep paper --dry-run", 0, ""),
    ("tasks mmlu", 0, ""),
    ("list tasks", 0, ""),
    ("list probes", 0, ""),
    ("list methods", 0, ""),
    (
        "show-prompt --task squat --model bundled",
        2,
        "error: unknown task 'squat'; did you mean 'squad'?",
    ),
    ("show", 2, "error: unknown command 'show'; did you mean 'show-prompt'?"),
    ("report nowhere", 2, "error: nowhere: no such directory"),
    ("status nowhere", 2, "error: nowhere: no such directory"),
]
PROGRAM = """
import contextlib, io, json, os, sys
from launch.commands.cli import main

def typed(arguments):
    error, sys.argv[1:] = io.StringIO(), arguments
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(error):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return code, [name for name in HEAVY if name in sys.modules], error.getvalue()

HEAVY, commands = json.loads(sys.argv[1])
for arguments in commands:
    if not os.fork():
        print(json.dumps(typed(arguments)), flush=True)
        os._exit(0)
    os.wait()
"""


def typed(*commands: str) -> list[tuple[int, list[str], str]]:
    """Of each command, forked from one process: exit code, which of HEAVY were
    imported, and standard error."""
    given = json.dumps([HEAVY, [each.split() for each in commands]])
    program = [sys.executable, "-c", PROGRAM, given]
    done = subprocess.run(
        program, stdout=subprocess.PIPE, text=True, check=True, env=environment()
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_light_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with_quantisation(write(tmp_path / "w8a16"), {"quant_method": "gptq", "bits": 8})
    answers = typed(*(command for command, _, _ in ANSWERS))
    for (command, code, message), (ended, imported, error) in zip(
        ANSWERS, answers, strict=True
    ):
        assert (command, ended, imported) == (command, code, [])
        # without arguments: the help alone
        assert error.startswith(message) if message else not error, command


def test_report_needs_no_engine(tmp_path):
    run = write_run(tmp_path, 3, ("dense", "wanda-0.6"), languages=("english",))
    ((code, imported, error),) = typed(f"report {run}")
    assert (code, error) == (0, "")
    assert not {"torch", "transformers", "ray", "vllm", "datasets"} & set(imported)
    program = (
        "import launch.run.decide.board, launch.run.work.fleet, sys; sys.exit('ray'"
        " in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], env=environment(), check=False
        ).returncode
        == 0
    )
