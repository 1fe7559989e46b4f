"""What a prune job's process does, without Ray."""

import contextlib
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.serving.workload import read_questions
from evaluator.core.lease import Held
from evaluator.probes.planning import tokenised
from launch.run.decide.assignments import shard_of
from launch.run.work import actors
from launch.sweep.models import BUNDLED_MODEL
from tests.support.pretended_engine import PretendedEngine


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process stays as it is when it becomes an engine's."""
    monkeypatch.setattr(actors, "_log_to", lambda path: None)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("VLLM_LOGGING_LEVEL", None)


@pytest.mark.usefixtures("process")
def test_job_waits_for_another_process(monkeypatch, tmp_path: Path, capsys) -> None:
    """Of a node that is out of reach: that process writes the same checkpoint."""
    slept: list[float] = []

    def prune(*_: object, **__: object) -> None:
        if len(slept) < 2:
            raise Held("process 7 on node-b writes it")

    monkeypatch.setattr(actors, "showing_life", contextlib.nullcontext)
    monkeypatch.setattr("pruning.run.prune", prune)
    monkeypatch.setattr(actors, "time", SimpleNamespace(sleep=slept.append))
    actors.make_checkpoint(
        SimpleNamespace(), tmp_path, None, {}, {}, tmp_path / "log", tmp_path / "pulse"
    )
    assert slept == [2.0, 2.0]
    assert capsys.readouterr().out == 2 * "waiting: process 7 on node-b writes it\n"


def test_next_questions_are_tokenised_ahead():
    """Those of the waiting shards, in a thread, as the engine's thread does it. An
    error is left to that thread."""
    read = read_questions("gazetteer", BUNDLED_MODEL, 6, probes=("greedy", "choice"))
    plain = [tokenised(each, read.prompter, read.config) for each in read.questions]
    engine = PretendedEngine()
    engine._on_gpu = True
    checkpoint = SimpleNamespace(path=BUNDLED_MODEL)
    assignment: Any = SimpleNamespace(checkpoint=checkpoint, config=read.config)
    engine._waiting.extend([shard_of((1, 2)), shard_of((4,))])
    known: dict[int, Any] = {}
    with engine._tokenising_ahead(assignment, read.questions, known):
        while len(known) < 3:
            time.sleep(0.01)
    assert known == {position: plain[position] for position in (1, 2, 4)}
    known.clear()
    checkpoint.path = Path("gone")
    with engine._tokenising_ahead(assignment, read.questions, known):
        time.sleep(0.2)
    assert known == {}
