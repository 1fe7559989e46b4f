"""Sides run in processes of their own; what goes wrong in one is one line."""

import sys

import pytest

from benchmarks.harness import Child, answer_of, module_command, run_main
from evaluator.core.errors import EngineError, InputError

ECHO = """
import sys
print("{}", flush=True)
for line in sys.stdin:
    print('{"said": "%s"}' % line.strip(), flush=True)
"""


def test_a_child_answers_once_per_round():
    with Child("echo", [sys.executable, "-c", ECHO]) as child:
        assert child.round() == {"said": "go"}
        child.round()
    assert child.results == [{"said": "go"}] * 2


@pytest.mark.parametrize("code", ["raise ValueError('a\\nwhy')", "print('{}', flush=True); raise ValueError('why')"])
def test_a_child_that_ends_says_why_in_one_line(code):
    with pytest.raises(SystemExit) as ended, Child("ours", [sys.executable, "-c", code]) as child:
        child.round()
    assert str(ended.value) == "ours failed with exit code 1: " + ("why" if "a\\n" in code else "ValueError: why")


def test_one_answer_is_the_last_line():
    assert answer_of("some", [sys.executable, "-c", "print(1); print('{\"seconds\": 2}')"]) == {"seconds": 2}
    with pytest.raises(SystemExit, match="some failed: ValueError: why"):
        answer_of("some", [sys.executable, "-c", "raise ValueError('why')"])


@pytest.mark.parametrize(("error", "code"), [(InputError("why"), 2), (EngineError("why"), 1)])
def test_an_error_for_a_user_is_one_line(capsys, error, code):
    def main():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_main(main)
    assert ended.value.code == code
    assert capsys.readouterr().err == "error: why\n"


def test_a_benchmark_refuses_bad_input_in_one_line(tmp_path):
    import subprocess

    from benchmarks.harness import environment

    done = subprocess.run(
        module_command("benchmarks.driver", "--task", "gazeteer"),
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
