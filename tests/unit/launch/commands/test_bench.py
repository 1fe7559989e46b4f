"""`resurface bench` runs the benchmarks of a checkout."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluator.core.errors import InputError
from launch.commands import bench
from launch.commands.bench import BENCHMARKS, CHECKOUT
from tests.support.runs import resurface


def test_every_benchmark_is_a_module_with_a_line_of_help() -> None:
    assert BENCHMARKS.names == ("score", "beam", "fidelity", "swap", "pass", "driver", "gate", "prune")
    for benchmark in BENCHMARKS:
        assert (CHECKOUT / "benchmarks" / f"{benchmark.module.replace('.', '/')}.py").is_file()
        assert benchmark.help


def test_an_unknown_benchmark_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="unknown benchmark 'scores'; did you mean 'score'"):
        bench.bench(SimpleNamespace(args=[]), "scores")


def test_the_installed_package_explains_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CHECKOUT", tmp_path)
    with pytest.raises(InputError, match=r"^no benchmarks are installed; run this in a checkout of Resurface"):
        bench.bench(SimpleNamespace(args=[]), "score")


@pytest.mark.parametrize(
    ("name", "arguments", "refusal"),
    [
        ("driver", ["--bogus"], "error: unrecognized arguments: --bogus"),
        ("all", ["--items", "-1"], "error: argument --items: '-1' is not a count of at least 1"),
        ("prune", ["--model", "nowhere"], "error: --model: nowhere: no such directory"),
    ],
)
def test_what_a_benchmark_refuses_is_one_line(name: str, arguments: list[str], refusal: str) -> None:
    done = resurface("bench", name, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(refusal)
    assert done.stderr.count("\n") == 1
    assert not done.stdout
