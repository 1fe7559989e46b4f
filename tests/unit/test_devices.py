"""Tests mean the CPU unless they are marked `gpu`, and those run one to a process."""

from __future__ import annotations

import os
import subprocess
from types import SimpleNamespace

import pytest
import torch

from tests.gpu import __main__ as alone
from tests.support.devices import hides_gpus


def test_gpus_are_hidden_from_this_test_and_what_it_starts() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert torch.cuda.device_count() == 0


@pytest.mark.parametrize(
    ("expression", "hidden"), [("", True), ("not slow", True), ("not gpu", True), ("gpu", False), ("gpu or slow", True)]
)
def test_only_a_run_of_nothing_but_gpu_tests_sees_them(expression: str, hidden: bool) -> None:
    assert hides_gpus(expression) is hidden


def test_each_gpu_test_has_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    started: list[list[str]] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        started.append(command)
        listed = "tests/gpu/test_a.py::test_one[a]\ntests/gpu/test_a.py::test_two\n\n2 tests collected\n"
        return SimpleNamespace(stdout=listed, returncode=int(command[-1].endswith("two")))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert alone.main([]) == 1
    assert [command[-1] for command in started[1:]] == [
        "tests/gpu/test_a.py::test_one[a]",
        "tests/gpu/test_a.py::test_two",
    ]
    assert all(command[3:5] == ["-m", "gpu"] for command in started)
    assert capsys.readouterr().out.splitlines() == ["1 of 2 tests passed, each alone", "tests/gpu/test_a.py::test_two"]


def test_without_a_gpu_nothing_is_started(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert alone.main([]) == 0
    assert capsys.readouterr().out == "no GPU: nothing is tested\n"
