"""Engines whose processes find no place, die or do not answer: the others work
meanwhile, and nobody waits forever."""

import contextlib
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from evaluator.core.records import EngineStats
from evaluator.engine.base import LoadReport
from evaluator.engine.config import EngineConfig
from launch.run.decide.assignments import EngineSetup, ShardResult, Where
from launch.run.decide.board import Board
from launch.run.decide.nodes import Placement
from launch.run.events import (
    Advanced,
    Began,
    Counted,
    Ended,
    Event,
    Retried,
    Unplaced,
    Warned,
)
from launch.run.work import cluster, workers
from launch.run.work.cluster import NodeLost, _sent_environment
from launch.run.work.fleet import Steps, Wait, Worker
from launch.run.work.workers import EngineWorker, turn
from launch.sweep.config import Resources
from tests.support.board import complete, make_assignment

UNAVAILABLE, DIED = ActorUnavailableError("broken", None), ActorDiedError()


class Ray:
    """Takes Ray's place: an actor has its place when `free` says so."""

    def __init__(self, free: Callable[[], bool]) -> None:
        self.free = free
        self.killed = 0

    def wait(
        self, pending: list[Any], *, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        if self.free():
            return pending, []
        time.sleep(0.01)
        return [], pending

    def get(self, pending: Any) -> Where:
        return Where(node="a", node_id="a", device="cpu")

    def kill(self, actor: Any) -> None:
        self.killed += 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What engines report; one without a place does so at once."""
    monkeypatch.setattr(workers, "_TELL_SECONDS", 0.0)
    actor = SimpleNamespace(where=SimpleNamespace(remote=lambda: "place"))
    monkeypatch.setattr(workers, "start_actor", lambda *_, **__: actor)
    return []


def _warnings(told: list[Event]) -> list[str]:
    return [each.text for each in told if isinstance(each, Warned)]


def _worker(board, told, log=Path("log"), config=None, gpus=2) -> EngineWorker:
    board.bus.listeners.append(lambda event, _: told.append(event))
    setup = EngineSetup(
        config=config,
        log_path=log,
        place=Placement(node_id="a", gpus=gpus, threads=None),
    )
    return EngineWorker(
        1, setup, board=board, store=None, questions={}, resources=Resources()
    )


@pytest.fixture
def board() -> Board:
    made = Board()
    made.add([make_assignment("dense", 3)])
    return made


def test_unplaced_engine_holds_no_work(board, told, monkeypatch) -> None:
    ray = Ray(lambda: False)
    monkeypatch.setattr(workers, "ray", ray)
    worker = _worker(board, told)
    worker.start()
    worker.waits = worker.waits._replace(until=0.0)
    turn([worker], 1.0)
    assert len(board.take(0, None, None).shards) == 3
    complete(board)
    assert worker.is_alive()
    worker.waits = worker.waits._replace(until=0.0)
    turn([worker], 1.0)
    assert not worker.is_alive()
    assert worker.failure is None
    assert [
        (each.engine, each.text) for each in told if isinstance(each, Unplaced)
    ] == [(1, "2 free GPUs on one node")]
    assert ray.killed == 1  # Ray would start it when GPUs are free


def test_dismissed_engine_waits_for_no_place(board, told, monkeypatch) -> None:
    monkeypatch.setattr(workers, "ray", Ray(lambda: False))
    worker = _worker(board, told)
    worker.start()
    worker.dismiss()
    worker.waits = worker.waits._replace(until=0.0)
    turn([worker], 1.0)
    assert not worker.is_alive()


def _end(steps: Steps[Any]) -> Any:
    """What a part of an engine's work returns if each answer comes at once."""
    try:
        next(steps)
        while True:
            steps.send(True)
    except StopIteration as ended:
        return ended.value


@pytest.mark.parametrize(
    ("fates", "gone", "blamed"),
    [
        # its process has ended: that may be the checkpoint's fault
        ([DIED], False, True),
        ([NodeLost()], True, False),
        ([None, NodeLost()], True, False),  # Ray knew only later
        ([None, None], False, False),  # it answers, or nobody knows
    ],
)
def test_engine_out_of_reach(board, told, monkeypatch, fates, gone, blamed) -> None:
    at_once = []
    worker = _worker(board, told)
    monkeypatch.setattr(workers, "lives", lambda node_id: True)

    def outcome(*_: object) -> Steps[Exception | None]:
        at_once.append(board.has_work)
        return fates.pop(0)
        yield

    monkeypatch.setattr(workers, "outcome_of_actor", outcome)
    board.join(1)
    assignment = board.take(1, None, None)
    failed = []
    monkeypatch.setattr(
        board.__class__,
        "failed",
        lambda self, engine, failure: failed.append(failure) or "go on",
    )
    _end(worker._handle(UNAVAILABLE, assignment, "evaluate"))
    assert [each.checkpoint for each in failed] == ["dense"] * blamed
    # others have the work while the second answer is waited for
    assert at_once == [False, True][: len(at_once)]
    assert worker.gone == gone
    assert _warnings(told) == (
        ["engine 1: its node is gone; others do its work"] if gone else []
    )
    assert worker.retired is None


def test_one_death_is_one_retry(told, monkeypatch) -> None:
    """Of an engine with three tasks in hand."""
    monkeypatch.setattr(workers, "lives", lambda node_id: True)
    board = Board()
    board.add([make_assignment("dense", 1, task=task) for task in "abc"])
    worker = _worker(board, told)
    board.join(1)
    assignment = board.take(1, None, None)
    assert {shard.task for shard in board.begin(1)} == {*"abc"}
    _end(worker._handle(DIED, assignment, "evaluate"))
    (retried,) = (each for each in told if isinstance(each, Retried))
    assert (retried.engine, retried.checkpoint) == (1, "dense")


@pytest.mark.parametrize(
    ("gpus", "swap", "processes"),
    # without a GPU the engine itself starts another in its process
    [(1, True, 1), (1, False, 2), (0, False, 1)],
)
def test_fresh_engine_on_a_gpu(board, told, monkeypatch, gpus, swap, processes) -> None:
    ray = Ray(lambda: True)
    monkeypatch.setattr(workers, "ray", ray)
    worker = _worker(board, told, config=EngineConfig(swap=swap), gpus=gpus)

    def hold(info) -> Steps[None]:
        worker._held = info.engine_keys
        return
        yield

    monkeypatch.setattr(worker, "_hold", hold)
    assert _end(worker._has_place())
    for name in ("a", "b", "b"):
        assert _end(worker._load(SimpleNamespace(engine_keys=(name, "llama"))))
    assert ray.killed == processes - 1


def _load(worker: EngineWorker, name: str, *notes: str) -> None:
    """Let a worker hold a checkpoint, whose load has such notes."""
    report = LoadReport(
        checkpoint=Path(name), swapped=False, tensors=1, seconds=0.0, notes=notes
    )
    worker.where = Where(node="a", node_id="a", device="cpu")
    worker._actor = SimpleNamespace(load=SimpleNamespace(remote=lambda info: report))
    steps = worker._hold(SimpleNamespace(name=name, engine_keys=(name, "llama")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers.ray, "get", lambda pending: pending)
        next(steps)
        with contextlib.suppress(StopIteration):
            steps.send(True)


def test_remarks_of_a_run_are_told_once(board, told) -> None:
    """And stay in run.json with their last numbers."""
    worker = _worker(board, told)
    _load(worker, "api", "slow")
    worker._turns = {"t": (0.0, 0)}
    for repeated, changed in ((3, 0), (5, 1), (9, 2)):
        counted = EngineStats(repeated=repeated, changed=changed)
        worker._note(("api", "t"), counted, 1)
    (row,) = board.bus.state.document["engine_stats"]
    assert (row["repeated"], row["changed"], row["notes"][0]) == (9, 2, "slow")
    assert row["notes"][1].startswith("2 of 9 fixed prompts had another answer")
    _, warning = _warnings(told)  # behind the note of the load
    assert warning.startswith("api: 1 of 5 fixed prompts had another answer")


def test_counters_of_each_checkpoint(board, told, monkeypatch) -> None:
    """Shards are noted as they come. A checkpoint with equal weights is not loaded
    again, but counted apart, and so is a task; each with the seconds since the note
    before."""
    worker = _worker(board, told)
    _load(worker, "dense", "slow")
    times = iter([1.0, 3.0, 7.0, 8.0, 10.0])
    noted = SimpleNamespace(monotonic=times.__next__)
    monkeypatch.setattr(workers, "time", noted)
    worker._turns = {"t": (0.0, 0), "u": (0.0, 0)}
    for part, requests, busy, items in (
        (("dense", "t"), 3, 1.0, 20),
        (("again", "t"), 9, 2.0, 20),
        (("dense", "t"), 10, 4.0, 7),
        (("dense", "u"), 12, 5.0, 3),
    ):
        worker._note(part, EngineStats(requests=requests, busy_seconds=busy), items)
    noted.monotonic = float
    _load(worker, "dense", "slow")
    noted.monotonic = times.__next__
    worker._note(("dense", "t"), EngineStats(requests=2), 4)
    names = ("checkpoint", "task", "requests", "busy_seconds", "items", "seconds")
    served = board.bus.state.document["engine_stats"]
    rows = [tuple(each[name] for name in names) for each in served]
    assert rows == [
        ("dense", "t", 4, 3.0, 27, 5.0),
        ("again", "t", 6, 1.0, 20, 2.0),
        ("dense", "u", 2, 1.0, 3, 1.0),
        ("dense", "t", 2, None, 4, 2.0),
    ]
    assert {(*each["notes"], each["scoring"], each["engine"]) for each in served} == {
        ("slow", "forced", 1)
    }


def test_an_engine_is_on_the_first_task_in_hand(told, monkeypatch) -> None:
    """Each task ends with its last shard, also one behind the first. Its seconds are
    those of its own shards."""
    board, shown = Board(), []
    for task, shards in (("first", 2), ("short", 1), ("last", 2)):
        board.add([make_assignment("dense", shards, task=task)])
    worker = _worker(board, told)
    _load(worker, "dense")
    told.clear()
    times = iter([1.0, 3.0, 7.0, 8.0, 18.0])
    noted = SimpleNamespace(monotonic=times.__next__)
    monkeypatch.setattr(workers, "time", noted)
    board.take(1, None, None)
    one, two, short, *last = hand = board.begin(1)
    worker._tell("dense", hand)
    for shard in (one, short, last[0], two, last[1]):
        result = ShardResult(shard=shard, part=b"", failed=None, stats=EngineStats())
        assert _end(worker._keep("dense", result)) == 1
        worker._note(("dense", shard.task), EngineStats(), 1)
        worker._tell("dense", board.hand(1))
        engine = board.bus.state.engines[1]
        shown.append((engine.state, engine.task, engine.items, engine.done))
    shards = [each for each in told if not isinstance(each, Counted)]
    assert [type(each)(engine=1, checkpoint="dense", task=each.task, items=each.items) for each in shards] == [
        Began(engine=1, checkpoint="dense", task="first", items=2),
        Advanced(engine=1, checkpoint="dense", task="first", items=1),
        Advanced(engine=1, checkpoint="dense", task="short", items=1),
        Ended(engine=1, checkpoint="dense", task="short", items=1),
        Advanced(engine=1, checkpoint="dense", task="last", items=1),
        Advanced(engine=1, checkpoint="dense", task="first", items=1),
        Ended(engine=1, checkpoint="dense", task="first", items=2),
        Began(engine=1, checkpoint="dense", task="last", items=1),
        Advanced(engine=1, checkpoint="dense", task="last", items=1),
        Ended(engine=1, checkpoint="dense", task="last", items=2),
    ]  # fmt: skip
    assert shown[:4] == [*3 * [("evaluating", "first", 2, 1)], ("evaluating", "last", 1, 0)]  # fmt: skip
    assert shown[4][:2] == ("idle", None)
    assert [(each.task, each.seconds) for each in told if isinstance(each, Ended)] == [
        ("short", 2.0),
        ("first", 2.0),
        ("last", 14.0),
    ]


def test_module_paths_are_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    sent = _sent_environment(
        {"RESURFACE_PLUGINS": "riddles", "PYTHONPATH": "mine:/theirs:", "HOME": "/home"}
    )
    assert sent == {
        "RESURFACE_PLUGINS": "riddles",
        "PYTHONPATH": f"{tmp_path}/mine:/theirs:${{PYTHONPATH}}",
    }
    assert _sent_environment({"PYTHONPATH": "", "HOME": "/home"}) == {}


@pytest.mark.parametrize(
    ("fails", "tries"), [(["Timed out"], 2), (["Timed out"] * 9, 3), (["no room"], 1)]
)
def test_ray_start_is_repeated(
    tmp_path: Path, monkeypatch, fails: list[str], tries: int
) -> None:
    coming, told, ended = iter(fails), [], []

    def start(**_: object) -> Any:
        told.append("init")
        if (why := next(coming, None)) is not None:
            raise RuntimeError(why)
        return SimpleNamespace(address_info={})

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray = SimpleNamespace(init=start, shutdown=lambda: ended.append("shutdown"))
    monkeypatch.setattr(cluster, "ray", ray)
    monkeypatch.setattr(
        cluster, "Cluster", lambda local: SimpleNamespace(lost="", close=lambda: None)
    )
    again: list[str] = []
    with (
        contextlib.suppress(cluster.ClusterError),
        cluster.cluster(tmp_path / "logs", again.append),
    ):
        assert tries == 2
    assert (len(told), len(again)) == (tries, tries - 1)
    # of each start: a failed one leaves no process either
    assert len(ended) == tries


def test_start_of_an_engine_is_not_measured(board, told, monkeypatch) -> None:
    """Nor the start of its next process: it does nothing meanwhile."""
    ray = SimpleNamespace(
        wait=lambda pending, **_: (pending, []), get=lambda asked: asked, kill=print
    )
    monkeypatch.setattr(workers, "ray", ray)
    worker, counted = _worker(board, told), EngineStats(steps=9)
    for _ in range(2):
        worker._actor = SimpleNamespace(stats=SimpleNamespace(remote=lambda: counted))
        assert [worker.reading() for _ in range(3)] == [None] * 3
        worker._held = "digest", "keys"  # a checkpoint was loaded
        assert [worker.reading() for _ in range(3)] == [None, counted, counted]
        worker._kill()


def test_engines_go_on_in_one_thread(board, told, monkeypatch) -> None:
    """Those whose answers have come, whose time is over, or that wait for work when the
    board has changed; an error ends its engine alone."""
    came, told_of = {"b"}, []
    ray = SimpleNamespace(
        wait=lambda pending, **_: ([each for each in pending if each in came], [])
    )
    monkeypatch.setattr(workers, "ray", ray)

    class Waiting(Worker):
        def __init__(self, number: int, wait: Wait) -> None:
            super().__init__(number, Placement(node_id="a", gpus=0, threads=1), board)
            self.wait = wait

        def run(self) -> Steps[None]:
            while True:
                told_of.append((self.number, (yield self.wait)))

    waits = Wait(math.inf, "a"), Wait(math.inf, "b"), Wait(0.0, "c"), Wait(math.inf, work=True)  # fmt: skip
    engines = [Waiting(number, wait) for number, wait in enumerate(waits)]
    for each in engines:
        each.start()
    turn(engines, 0.0)
    assert told_of == [(1, True), (2, False)]
    board.changes += 1
    turn(engines, 0.0)
    assert told_of[2:] == [(1, True), (2, False), (3, False)]
    engines[1].close()
    assert not engines[1].is_alive()


def test_a_disk_that_never_answers_keeps_no_process():
    code = (
        "import sys, threading; from launch.run.work.workers import _begun;"
        " _begun(threading.Event().wait); sys.exit(7)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 7
