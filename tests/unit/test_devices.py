"""Tests mean the CPU unless they are marked `gpu`, and each of those that starts an engine has a process of its own."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest
import torch

from tests.gpu import __main__ as alone
from tests.support.devices import FOLDER, hides_gpus


def test_gpus_are_hidden_from_this_test_and_what_it_starts() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert torch.cuda.device_count() == 0


@pytest.mark.parametrize(
    ("expression", "hidden"), [("", True), ("not slow", True), ("not gpu", True), ("gpu", False), ("gpu or slow", True)]
)
def test_only_a_run_of_nothing_but_gpu_tests_sees_them(expression: str, hidden: bool) -> None:
    assert hides_gpus(expression, [FOLDER.parent]) is hidden


def test_nor_are_they_hidden_from_a_run_of_their_folder() -> None:
    assert not hides_gpus("", [FOLDER])
    assert not hides_gpus("", [FOLDER / "test_engine_gpu.py", FOLDER / "test_prune_cuda.py"])
    assert hides_gpus("", [FOLDER, FOLDER.parent / "unit"])
    assert hides_gpus("", [])


def test_each_gpu_test_of_an_engine_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    one, two = "tests/gpu/test_engine_gpu.py::test_one[a]", "tests/gpu/test_engine_gpu.py::test_two"
    pruning = ["tests/gpu/test_prune_cuda.py::test_one", "tests/gpu/test_prune_cuda.py::test_two"]
    started: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        started.append(command)
        listed = "\n".join([one, two, *pruning, "", "4 tests collected", ""])
        return SimpleNamespace(stdout=listed, returncode=int(command[-1] in (two, pruning[-1])))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert alone.main([]) == 1
    assert started[0][-1] == str(FOLDER)
    assert [command[command.index("no:cacheprovider") + 1 :] for command in started[1:]] == [[one], [two], pruning]
    assert all(command[3:5] == ["-m", "gpu"] for command in started)
    assert capsys.readouterr().out.splitlines() == [
        "1 of 3 processes passed",
        two,
        "some of tests/gpu/test_prune_cuda.py",
    ]


def test_no_test_at_all_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="tests/gpu/test_a.py: 3\n"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert alone.main([]) == 1
    assert capsys.readouterr().out == "no test is found\n"


@pytest.mark.slow
def test_the_tests_of_a_gpu_are_found() -> None:
    found = alone.collected([])
    assert {test.partition("::")[0] for test in found} == {
        path.relative_to(FOLDER.parents[1]).as_posix() for path in FOLDER.glob("test_*.py")
    }


def test_without_a_gpu_nothing_is_started(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert alone.main([]) == 0
    assert capsys.readouterr().out == "no GPU: nothing is tested\n"
