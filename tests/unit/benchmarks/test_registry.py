"""`resurface bench` knows what the registry knows."""

import importlib.util

import pytest

from benchmarks.registry import BENCHMARKS
from evaluator.errors import InputError
from launch.commands.bench import run_benchmarks


def test_every_benchmark_is_a_module_with_a_line_of_help():
    assert BENCHMARKS.names == ("score", "beam", "swap", "pass", "driver", "prune")
    for benchmark in BENCHMARKS:
        assert importlib.util.find_spec(benchmark.module)
        assert benchmark.help


def test_an_unknown_benchmark_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match="unknown benchmark 'scores'; did you mean 'score'"):
        run_benchmarks("scores", ())


def test_arguments_that_a_benchmark_refuses_are_an_input_error(capfd):
    with pytest.raises(InputError, match="'driver' refused its arguments"):
        run_benchmarks("driver", ["--rounds", "many"])
    assert "--rounds" in capfd.readouterr().err
