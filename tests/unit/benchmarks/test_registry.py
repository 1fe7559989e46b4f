"""`resurface bench` knows what the registry knows."""

import importlib.util

import pytest

from benchmarks.registry import BENCHMARKS
from evaluator.core.errors import InputError
from launch.commands.bench import run_benchmarks
from tests.support.runs import resurface


def test_every_benchmark_is_a_module_with_a_line_of_help():
    assert BENCHMARKS.names == ("score", "beam", "fidelity", "swap", "pass", "driver", "cluster", "gate", "prune")
    for benchmark in BENCHMARKS:
        assert importlib.util.find_spec(benchmark.module)
        assert benchmark.help


def test_an_unknown_benchmark_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="unknown benchmark 'scores'; did you mean 'score'"):
        run_benchmarks("scores", ())


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("driver", ["--bogus"], "error: unrecognized arguments: --bogus"),
        ("all", ["--items", "-1"], "error: argument --items: '-1' is not a count of at least 1"),
        pytest.param(  # imports Ray
            *("cluster", ["--items", "9999"], "error: --items 9999: task gazetteer has 2700"), marks=pytest.mark.slow
        ),
        ("prune", ["--model", "nowhere"], "error: --model: nowhere: no such directory"),
    ],
)
def test_what_a_benchmark_refuses_is_one_line(name, arguments, said):
    done = resurface("bench", name, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert not done.stdout
