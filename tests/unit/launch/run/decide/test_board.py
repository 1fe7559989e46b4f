"""The board's decisions, and that no shard is ever lost or done twice whatever
engines do."""

import threading
import time
from types import SimpleNamespace

import pytest

from launch.run.decide import board as module
from launch.run.decide.assignments import Assignment
from launch.run.decide.board import Board
from tests.support.board import finish, make_assignment, no_spare


def _names(assignment: Assignment) -> list[str]:
    return [shard.name for shard in assignment.shards]


@pytest.mark.parametrize(
    ("work", "held", "order"),
    [
        ("other:mistral sibling held", "held", "held sibling other"),
        ("alone wanda<dense dense", None, "dense alone wanda"),
    ],
)
def test_order_of_work(work, held, order) -> None:
    """What is loaded, what can be swapped in, another architecture; bases first."""
    board = Board()
    for each in work.split():
        name, _, base = each.partition("<")
        name, _, architecture = name.partition(":")
        made = make_assignment(name, 1, architecture or "qwen3", base=base or None)
        board.add([made])
    digest = held and f"digest of {held}"
    done = [finish(board, 0, digest).part[0] for _ in range(3)]
    assert done == order.split()


def _waiting(
    board: Board, engine: int = 0, held: str | None = None
) -> tuple[threading.Thread, list[Assignment]]:
    taken: list[Assignment] = []
    thread = threading.Thread(
        target=lambda: taken.append(board.take(engine, held, "qwen3"))
    )
    thread.start()
    return thread, taken


def test_idle_engine_gives_way_to_jobs(monkeypatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)
    board = Board(source=(source := SimpleNamespace(open=True)))
    thread, taken = _waiting(board)
    thread.join(timeout=0.05)
    assert thread.is_alive()  # nobody needs its GPUs
    board.short = True
    thread.join()
    assert (taken, board.over) == ([None], False)
    board.add([make_assignment("wanda", 1)])
    source.open = False
    assert _names(board.take(1, None, None)) == ["wanda-0"]


def test_idle_engine_ends_after_a_minute(monkeypatch) -> None:
    """An engine without work looks each second, and ends when it has waited for more
    than 60."""
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[-1]))
    board = Board()
    board.add([make_assignment("dense", 1)])
    assert _names(board.take(0, None, None)) == ["dense-0"]
    board._changed.wait = lambda timeout: clock.append(clock[-1] + timeout)
    assert board.take(1, None, None) is None
    assert clock == list(range(62))


def test_busiest_engine_is_relieved() -> None:
    board = Board()
    board.add([make_assignment("small", 2), make_assignment("large", 8)])
    asked: list[int] = []
    board.take(0, None, None)
    large = board.take(1, None, None).shards
    board.begin(0, no_spare)
    # it had begun the others meanwhile
    board.begin(1, lambda count: asked.append(count) or large[-2:])
    assert _names(board.take(2, None, None)) == ["large-6", "large-7"]
    assert asked == [4]


def test_engine_on_an_awaited_base_first() -> None:
    board = Board(source=SimpleNamespace(open=True))
    waits = make_assignment("wanda", 1, base="dense")
    board.add([make_assignment("dense", 4), make_assignment("large", 9), waits])
    dense, _ = board.take(0, None, None), board.take(1, None, None)
    board.begin(0, lambda _: dense.shards[2:])
    board.begin(1, no_spare)
    assert _names(board.take(2, None, None)) == ["dense-2", "dense-3"]


def test_engine_with_nothing_to_give() -> None:
    """It is asked once a second; one that still loads is not asked at all."""
    board = Board()
    board.add([make_assignment("dense", 5)])
    board.take(0, None, None)
    assert _names(board._relieve(1)) == ["dense-3", "dense-4"]
    asked: list[int] = []
    board.begin(0, lambda count: asked.append(count) or [])
    for ask_after, number in ((0.0, 1), (None, 1), (0.0, 2)):
        if ask_after is not None:
            board._busy[0].ask_after = ask_after
        assert board._relieve(1) is None
        assert asked == [1] * number
    assert 0 < board._busy[0].ask_after - time.monotonic() <= 1.0


def test_checkpoint_waits_for_its_base() -> None:
    board = Board()
    board.add([make_assignment("wanda", 2, base="dense"), make_assignment("dense", 3)])
    # holding its weights already is no reason
    first = board.take(0, "digest of wanda", "qwen3")
    assert first.part == ("dense", "gazetteer")
    board.begin(0, no_spare)
    thread, taken = _waiting(board, 1, "digest of wanda")
    for shard in first.shards:
        assert not taken
        board.finished(0, shard)
    thread.join()  # the engine of the base need not have ended
    assert _names(taken[0]) == ["wanda-0", "wanda-1"]


def test_only_the_same_task_is_awaited() -> None:
    """A base may have its records from an earlier call."""
    board = Board()
    board.add([make_assignment("dense", 1), make_assignment("dense", 1, task="xquad")])
    board.add([make_assignment("wanda", 1, base="dense")])
    board.add([make_assignment("other", 1, base="second")])
    held = "digest of dense"
    assert finish(board, 0, held).part == ("dense", "gazetteer")
    # ready, though dense is not done with xquad
    assert finish(board, 1, "digest of wanda").part == ("wanda", "gazetteer")
    done = {finish(board, 0, held).part for _ in range(2)}
    assert done == {("dense", "xquad"), ("other", "gazetteer")}


def test_remote_engines_serve_urls_only(monkeypatch) -> None:
    """Neither kind waits for the other's work."""
    monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)
    board = Board()
    board.remote.add("api")
    board.remote_engines.add(1)
    board.add([make_assignment("api", 1), make_assignment("dense", 1)])
    assert finish(board, 0).checkpoint.name == "dense"
    assert board.take(0, None, None) is None
    assert finish(board, 1).checkpoint.name == "api"
    board.add([make_assignment("dense", 1)])
    assert board.take(1, None, None) is None
    assert board.has_work
