"""Engines where the nodes are: they come, go, end when there is nothing to do, and
come back."""

from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.core.errors import EngineError, ResurfaceError
from launch.run.decide.nodes import Node, Placement
from launch.run.work.fleet import Fleet


class Worker:
    def __init__(self, number: int, place: Placement) -> None:
        self.number, self.place, self.node_id = number, place, place.node_id
        self.failure: Exception | None = None
        self.retired: str | None = None
        self.alive = self.gone = self.dismissed = self.loaded = False
        # None: it has no process
        self.where: Any = SimpleNamespace(visible=f"GPU {number}")

    @property
    def serving(self) -> bool:
        return self.is_alive() and not self.dismissed

    def start(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive and not self.gone

    def dismiss(self) -> None:
        self.dismissed = True


def _nodes(**gpus: int) -> list[Node]:
    return [
        Node(node_id=name, name=name, cpus=4, gpus=count, driver=name == "a")
        for name, count in gpus.items()
    ]


def _fleet(
    work: bool = True, wanted: int | None = None, held: str | None = "", **gpus: int
) -> tuple[Any, Any]:
    """Prune jobs have a GPU of each node in `held`; None: no engine is started yet."""
    board = SimpleNamespace(has_work=work, over=False, spare=True)
    fleet: Any = Fleet(_nodes(**gpus), board, Worker, tensor_parallel=1, wanted=wanted)  # type: ignore[arg-type]
    assert all(fleet.free.take(node_id, 1) for node_id in held or "")
    if held is not None:
        fleet.start()
    return fleet, board


def _stand(fleet: Any) -> str:
    return "".join(
        f"{worker.number}{worker.node_id}"
        for worker in fleet.workers
        if worker.is_alive()
    )


def _look(fleet: Any, **gpus: int) -> str:
    fleet.follow(_nodes(**gpus))
    fleet.start()
    return _stand(fleet)


def _retire(fleet: Any, number: int) -> None:
    fleet.workers[number].alive, fleet.workers[number].retired = False, "bad"


def _waits(fleet: Any, message: str, **more: bool) -> None:
    """The run goes on for an hour, and then ends."""
    fleet.check(3600.0, **more)
    fleet._alone_since -= 3601
    with pytest.raises(ResurfaceError, match=message):
        fleet.check(3600.0, **more)


def test_engines_of_a_lost_node_end() -> None:
    fleet, _ = _fleet(a=0, b=0)
    assert _stand(fleet) == "0a1b"
    # the driver keeps a core
    assert [worker.place.threads for worker in fleet.workers] == [4 - 1, 4]
    assert _look(fleet, a=0) == "0a"
    assert fleet.workers[1].gone
    assert [node.name for node in fleet.follow(_nodes(a=0, c=0))] == ["c"]
    fleet.start()
    assert _stand(fleet) == "0a2c"
    # One that outlives its node elsewhere ends with what it has.
    fleet, _ = _fleet(a=1, b=2)
    assert _stand(fleet) == "0a1b2b"
    fleet.workers[0].node_id = "b"
    fleet.follow(_nodes(b=2))
    assert [worker.gone for worker in fleet.workers] == [True, False, False]


def test_idle_engines_come_back() -> None:
    fleet, board = _fleet(work=False, a=2)
    fleet.workers[1].alive = False
    assert fleet.working  # the other one
    for _ in range(2):
        assert _look(fleet, a=2) == "0a"
    board.has_work = True
    assert _look(fleet, a=2) == "0a2a"
    assert not fleet.free.take("a", 1)


def test_what_ends_the_run() -> None:
    fleet, board = _fleet(a=1)
    fleet.check(0.0)
    fleet.workers[0].alive = False
    fleet.follow([])
    _waits(fleet, "no node has had room for an engine for 3601 s")  # a node may come
    board.has_work = False
    fleet.check(0.0)
    board.has_work = True
    fleet.workers[0].retired = "engine 0: it failed"
    fleet.follow(_nodes(a=1))
    with pytest.raises(
        EngineError, match="no working engine is left: engine 0: it failed"
    ):
        fleet.check(3600.0)
    fleet.workers[0].failure = ValueError("a probe")
    with pytest.raises(ValueError, match="a probe"):
        fleet.check(3600.0)
    # Work that nothing can do ends it after a while.
    fleet, board = _fleet(work=False, a=1)
    fleet.workers[0].alive = False
    fleet.follow([])
    fleet.check(0.0, pruning=True)
    _waits(fleet, "no node has had room for a prune job for 3601 s", short=True)
    fleet.workers[0].alive = True  # when it ends, its GPU is a prune job's
    fleet.check(0.0, short=True)
    assert fleet._alone_since is None
    other, _ = _fleet(held="a", a=1)
    other.check(0.0, pruning=True)  # it will be free
    _waits(other, "no node has had room for an engine for 3601 s")


@pytest.mark.parametrize(
    ("gpus", "needs"), [(1, "1 free GPU on one node"), (0, "a process")]
)
def test_unplaced_engines_end_the_run(gpus: int, needs: str) -> None:
    fleet, board = _fleet(a=gpus, b=gpus)
    for worker in fleet.workers:
        worker.where = None
    fleet.check(3600.0)
    fleet.workers[1].where = "there"
    fleet.check(0.0)
    # only the time in which no engine has a process counts
    fleet.workers[1].where = None
    _waits(
        fleet, rf"no engine has found {needs} for 3601 s .*: others hold them, or nodes"
    )
    board.over = True
    fleet.check(0.0)


def test_node_of_retired_engines_is_avoided() -> None:
    fleet, _ = _fleet(wanted=2, a=4, b=1)
    assert _stand(fleet) == "0a1b"
    _retire(fleet, 0)
    assert _look(fleet, a=4, b=1) == "1b2a"  # it may have been that one GPU
    _retire(fleet, 2)
    assert _look(fleet, a=4, b=1) == "1b"
    assert _look(fleet, a=4, b=1, c=1) == "1b3c"


def test_first_engine_precedes_jobs() -> None:
    for gpus, expected in ((1, ""), (3, "0a")):
        fleet, board = _fleet(work=False, held=None, a=gpus)
        fleet.start_first()
        assert _stand(fleet) == ""
        board.has_work = True
        for _ in range(2):
            fleet.start_first()
        assert _stand(fleet) == expected


def _share(fleet: Any, engines: int) -> str:
    """Every engine that stands after so many looks, with its GPU; each look finds
    the last one loaded."""
    for _ in range(6):
        fleet.share(engines)
        assert sum(not worker.loaded for worker in fleet.workers) <= 1
        for worker in fleet.workers:
            worker.loaded = True
        for worker in fleet.workers:
            worker.alive &= not worker.dismissed
    return " ".join(
        f"{worker.number}{worker.place.visible[4:]}/{worker.place.slot}"
        for worker in fleet.workers
        if worker.alive
    )


def test_engines_share_gpus() -> None:
    """They start one after another beside the first engine of a GPU, and the newest
    end first. Ray counts the first only."""
    fleet, board = _fleet(a=1, b=1)
    for worker in fleet.workers:
        worker.loaded = True
    assert _share(fleet, 1) == "0/0 1/0"
    assert _share(fleet, 3) == "0/0 1/0 20/1 31/1 40/2 51/2"
    assert {
        (each.place.gpus, each.node_id) for each in fleet.sharing(fleet.workers[1])
    } == {(1, "b"), (0, "b")}
    assert _share(fleet, 2) == "0/0 1/0 20/1 31/1"
    assert fleet.first() is fleet.workers[0]
    fleet.workers[2].alive = False  # it had no work
    board.spare = False
    assert _share(fleet, 2) == "0/0 1/0 31/1"
    board.spare = True
    assert _share(fleet, 2) == "0/0 1/0 31/1 60/1"
    # a GPU is free when its last engine has ended
    fleet.workers[0].alive, board.has_work = False, False
    assert _look(fleet, a=1, b=1) == "1b3b6a"
    fleet.share(2)
    assert fleet.workers[6].dismissed
    _look(fleet, a=1, b=1)
    assert not fleet.free.take("a", 1)
    assert _share(fleet, 2) == "1/0 31/1"
    assert _look(fleet, a=1, b=1) == "1b3b"
    assert fleet.free.take("a", 1)


def test_remote_engines_need_no_gpu() -> None:
    """They come on top, and are not counted where engines are missing."""
    board = SimpleNamespace(has_work=True, over=False)
    fleet: Any = Fleet(
        _nodes(a=1), board, Worker, tensor_parallel=1, wanted=None, remote=2
    )  # type: ignore[arg-type]
    fleet.start()
    assert [worker.place.gpus for worker in fleet.workers] == [1, 0, 0]
    assert _look(fleet, a=1, b=1) == "0a1a2a3b"
