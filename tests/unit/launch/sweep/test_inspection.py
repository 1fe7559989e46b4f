"""Checkpoints are inspected several at a time, each as it is alone."""

import os
import threading
from pathlib import Path

from evaluator.checkpoints.info import inspect_checkpoint
from launch.sweep import preflight
from launch.sweep.jobs import CheckpointJob
from launch.sweep.preflight import Inspections
from tests.support.models import save_tiny_model
from tests.support.sweeps import refused


def job(name: str, path: Path) -> CheckpointJob:
    return CheckpointJob(name=name, path=path, model=name, base=None, tasks={})


def test_several_are_read_at_once_and_none_is_begun_afterwards(tmp_path, monkeypatch):
    both, go_on, begun = threading.Barrier(3), threading.Event(), []

    def inspect(path, name, *, trust_remote_code):
        begun.append(name)
        both.wait()
        go_on.wait()
        return name

    monkeypatch.setattr(preflight, "inspect_checkpoint", inspect)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = set(threading.enumerate())
    with Inspections([job(name, tmp_path) for name in "abcd"], trust=False):
        both.wait()  # two are being read
        readers = set(threading.enumerate()) - before
    go_on.set()
    for reader in readers:
        reader.join()
    assert sorted(begun) == ["a", "b"]


def test_each_is_what_it_is_alone_and_is_given_once_when_it_has_ended(tmp_path):
    for seed, name in enumerate("ab"):
        save_tiny_model(tmp_path / name, seed=seed)
    (tmp_path / "b" / "model.safetensors").write_bytes(b"short")
    with Inspections(trust=False) as found:
        assert found.ended() == []
        jobs = [job(name, tmp_path / name) for name in "abc"]
        for each in jobs:  # "c" is not there
            found.begin(each)
        given = []
        while len(given) < len(jobs):
            given += found.ended()
        assert sorted(each.name for each in given) == ["a", "b", "c"]
        assert found.ended() == []
        assert found.result("a") == inspect_checkpoint(tmp_path / "a")
        for name, said in (("b", "truncated"), ("c", "no such directory")):
            assert said in refused(found.result, name)


def test_a_reader_that_has_nothing_left_makes_place_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight, "inspect_checkpoint", lambda path, name, *, trust_remote_code: name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with Inspections(trust=False) as found:
        for number in range(200):  # the only reader ends between some of them
            found.begin(job(str(number), tmp_path / "nowhere"))
            if number % 3 == 0:
                assert found.result(str(number)) == str(number)
        assert [found.result(str(number)) for number in range(200)] == [str(number) for number in range(200)]
