"""Checkpoints are inspected several at a time, each as it is alone."""

import os
import threading
from pathlib import Path

import pytest

from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.errors import InputError
from launch.sweep import inspection
from launch.sweep.inspection import inspecting
from launch.sweep.jobs import CheckpointJob
from tests.support.models import save_tiny_model


def job(name: str, path: Path) -> CheckpointJob:
    return CheckpointJob(name=name, path=path, model=name, base=None, tasks={})


def test_each_is_what_it_is_alone(tmp_path):
    for seed, name in enumerate("abc"):
        save_tiny_model(tmp_path / name, seed=seed)
    (tmp_path / "b" / "model.safetensors").write_bytes(b"short")
    jobs = [job(name, tmp_path / name) for name in "abcd"]
    with inspecting(jobs, trust=False) as found:
        assert found["a"].result() == inspect_checkpoint(tmp_path / "a")
        assert found["c"].result() == inspect_checkpoint(tmp_path / "c")
        for name, said in (("b", "truncated"), ("d", "no such directory")):
            with pytest.raises(InputError, match=said):
                found[name].result()


def test_several_are_read_at_once_and_none_is_begun_afterwards(tmp_path, monkeypatch):
    both, go_on, begun = threading.Barrier(3), threading.Event(), []

    def inspect(path, name, *, trust_remote_code):
        begun.append(name)
        both.wait()
        go_on.wait()
        return name

    monkeypatch.setattr(inspection, "inspect_checkpoint", inspect)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = set(threading.enumerate())
    with inspecting([job(name, tmp_path) for name in "abcd"], trust=False):
        both.wait()  # two are being read
        readers = set(threading.enumerate()) - before
    go_on.set()
    for reader in readers:
        reader.join()
    assert sorted(begun) == ["a", "b"]


def test_nothing_is_started_for_nothing():
    with inspecting([], trust=False) as found:
        assert not found
