"""What a prune job's process does, without Ray."""

import contextlib
import io
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.serving.workload import read_questions
from evaluator.checkpoints.info import inspect_checkpoint
from evaluator.checkpoints.tokenizer import digest_of_files
from evaluator.core.lease import Held
from evaluator.probes.planning import tokenised
from launch.run.decide import board as board_module
from launch.run.decide.assignments import Assignment, origin_of, shard_of
from launch.run.decide.board import Board
from launch.run.work import actors
from launch.sweep.models import BUNDLED_MODEL
from tests.support.fake import FakeEngine, FakeLM
from tests.support.models import VOCABULARY
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
    files = digest_of_files(BUNDLED_MODEL)
    checkpoint = SimpleNamespace(path=BUNDLED_MODEL, tokenizer=files)
    assignment: Any = SimpleNamespace(
        checkpoint=checkpoint, config=read.config, task="t", task_key="t"
    )
    shards = tuple(replace(shard_of(each), task="t") for each in ((1, 2), (4,)))
    engine.feed(0, shards, [(assignment, None)], read.questions)
    known = engine._tasks["t"].known
    engine.feed(0, (replace(shards[0], task="its feed failed"),), [])
    assert tuple(engine._waiting) == shards
    with engine._tokenising_ahead():
        while len(known) < 3:
            time.sleep(0.01)
    assert known == {position: plain[position] for position in (1, 2, 4)}
    known.clear()
    checkpoint.path = Path("gone")
    with engine._tokenising_ahead():
        time.sleep(0.2)
    assert known == {}


class _Watched(FakeEngine):
    """Notes the free rows of each step."""

    def run(self, source: Any) -> Any:
        self.free: list[int] = []

        def take(limit: int) -> Any:
            given = source.take(limit)
            self.free.append(limit - len(given))
            return given

        return super().run(SimpleNamespace(take=take))


def test_fed_stream_leaves_no_row_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nothing is left to follow: in one stream, whatever the shards, through all
    tasks of the checkpoint."""
    monkeypatch.setattr(board_module, "items_at_once", lambda _: 32)  # the rows
    read = read_questions("gazetteer", BUNDLED_MODEL, 400, probes=("greedy",))
    info = inspect_checkpoint(BUNDLED_MODEL, "dense")
    count = len(read.questions)
    cuts = [tuple(range(n, min(n + 20, count))) for n in range(0, count, 20)]
    board, engine = Board(), PretendedEngine()
    tasks = {
        name: [replace(q, item=replace(q.item, task=name)) for q in read.questions]
        for name in "ab"
    }
    whole = Assignment(
        checkpoint=info, task="a", task_key="a", config=read.config,
        origin=origin_of(info, None), shards=tuple(map(shard_of, cuts)),
    )  # fmt: skip
    board.add([replace(whole, task=name, task_key=name) for name in tasks])
    board.take(0, None, None)
    model = FakeLM(vocabulary=VOCABULARY, seed=0)
    engine._engine = fake = _Watched(model.answer, room=32)
    first = [(board.assignment(0, "a"), None)], tasks["a"]
    full, items = 0, dict.fromkeys(tasks, 0)
    for result in engine.evaluate(1, board.begin(0), *first):
        items[result.shard.task] += len(result.shard.questions)
        table = pq.read_table(io.BytesIO(result.part))
        assert set(table["task"].to_pylist()) == {result.shard.task}
        board.finished(0, result.shard)
        if more := board.more(0):
            new: list[Any] = [[]]
            if "b" not in engine._tasks and any(each.task == "b" for each in more):
                new = [[(board.assignment(0, "b"), None)], tasks["b"]]
            engine.feed(1, more, *new)
            full = len(fake.free)
    assert items == dict.fromkeys(tasks, count)
    assert engine._tasks == {}  # its questions are not kept
    assert len(fake.free) > full > count
    assert not any(fake.free[:full])
