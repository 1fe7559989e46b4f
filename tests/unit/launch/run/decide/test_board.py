"""The board's decisions, and that no shard is ever lost or done twice whatever
engines do."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.run.decide import board as module
from launch.run.decide.assignments import Assignment, Shard
from launch.run.decide.board import Board
from tests.support.board import complete, finish, make_assignment, no_spare


def _names(assignment: Assignment) -> list[str]:
    return [shard.name for shard in assignment.shards]


def test_order_of_work() -> None:
    board = Board()
    board.add(
        [
            make_assignment("other", 1, "mistral"),
            make_assignment("sibling", 1),
            make_assignment("held", 1),
        ]
    )
    # which stays on the board
    assert board.upcoming(0, "digest of held", "qwen3").name == "sibling"
    assert [finish(board, 0, "digest of held").part[0] for _ in range(3)] == [
        "held",
        "sibling",
        "other",
    ]
    assert board.take(0, "digest of other", "mistral") is None
    assert board.upcoming(0, "digest of held", "qwen3") is None
    board = Board()
    board.add(
        [
            make_assignment("alone", 1),
            make_assignment("wanda", 1, base="dense"),
            make_assignment("dense", 1),
        ]
    )
    assert [finish(board).part[0] for _ in range(3)] == ["dense", "alone", "wanda"]


def _waiting(
    board: Board, engine: int = 0, held: str | None = None
) -> tuple[threading.Thread, list[Assignment]]:
    taken: list[Assignment] = []
    thread = threading.Thread(
        target=lambda: taken.append(board.take(engine, held, "qwen3"))
    )
    thread.start()
    return thread, taken


@pytest.mark.parametrize("shards", [0, 2])
def test_engine_waits_for_open_source(shards: int) -> None:
    board = Board(sources=[source := SimpleNamespace(open=True)])
    thread, taken = _waiting(board)
    board.add([make_assignment("wanda", shards)])
    source.open = False
    board.add([])
    thread.join()
    assert [each and _names(each) for each in taken] == [
        ["wanda-0", "wanda-1"] if shards else None
    ]


def test_stop_ends_the_waiting() -> None:
    board = Board(sources=[SimpleNamespace(open=True)])
    thread, taken = _waiting(board)
    board.stop()
    thread.join()
    board.add([make_assignment("dense", 1)])
    assert [*taken, board.take(0, None, None)] == [None, None]


def test_idle_engine_ends_or_gives_way(monkeypatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)
    board = Board()
    board.add([make_assignment("dense", 1), make_assignment("wanda", 1, base="dense")])
    assert _names(board.take(0, None, None)) == ["dense-0"]
    thread, taken = _waiting(board, 1)  # it waits: there is something to come
    complete(board)
    thread.join()
    assert _names(taken[0]) == ["wanda-0"]
    assert board.take(2, None, None) is None
    assert not board.over
    monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)
    board = Board(sources=[source := SimpleNamespace(open=True)])
    thread, taken = _waiting(board)
    thread.join(timeout=0.05)
    assert thread.is_alive()  # nobody needs its GPUs
    board.short = True
    thread.join()
    assert taken == [None]
    assert not board.over
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
    large = make_assignment("large", 8).shards
    assert _names(board.take(0, None, None)) == ["small-0", "small-1"]
    assert len(_names(board.take(1, None, None))) == 8
    board.begin(0, no_spare)
    # it had begun the others meanwhile
    board.begin(1, lambda count: asked.append(count) or large[-2:])
    assert _names(board.take(2, None, None)) == ["large-6", "large-7"]
    assert asked == [4]
    board = Board(sources=[SimpleNamespace(open=True)])
    board.add(
        [
            make_assignment("dense", 4),
            make_assignment("large", 9),
            make_assignment("wanda", 1, base="dense"),
        ]
    )
    dense, large = board.take(0, None, None), board.take(1, None, None)
    assert (len(_names(dense)), len(_names(large))) == (4, 9)
    asked: list[str] = []
    board.begin(0, lambda _: asked.append("dense") or dense.shards[2:])
    board.begin(1, lambda _: asked.append("large") or [])
    assert _names(board.take(2, None, None)) == ["dense-2", "dense-3"]
    assert asked == ["dense"]


def test_engine_with_nothing_to_give() -> None:
    board = Board()
    board.add([make_assignment("dense", 4)])
    board.take(0, None, None)
    asked: list[int] = []
    board.begin(0, lambda count: asked.append(count) or [])
    for _ in range(3):
        assert board._relieve(1) is None
    assert asked == [2]
    assert board._busy[0].ask_after - time.monotonic() <= 1.0
    board._busy[0].ask_after = 0.0
    assert board._relieve(1) is None
    assert asked == [2, 2]
    board = Board()
    board.add([make_assignment("dense", 5)])
    assert len(_names(board.take(0, None, None))) == 5
    assert _names(board.take(1, None, None)) == ["dense-3", "dense-4"]
    assert [shard.name for shard in board.begin(0, no_spare)] == [
        "dense-0",
        "dense-1",
        "dense-2",
    ]


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
    board = Board()
    board.add(
        [
            make_assignment("dense", 2),
            make_assignment("dense", 2, task="xquad"),
            make_assignment("wanda", 1, base="dense"),
            # whose base has its records from an earlier call
            make_assignment("other", 1, base="second"),
            # with no probe that reads the base
            make_assignment("wanda", 1, task="other"),
        ]
    )
    held = "digest of dense"
    done = [finish(board, 0, held).part]
    # ready, though dense is not done with xquad
    assert board.take(1, "digest of wanda", "qwen3") is not None
    board.end(1)
    while board.has_work:
        done.append(finish(board, 0, held).part)
    assert done[:2] == [("dense", "gazetteer"), ("dense", "xquad")]
    assert set(done[2:]) == {
        ("wanda", "gazetteer"),
        ("wanda", "other"),
        ("other", "gazetteer"),
    }


@pytest.mark.parametrize("engines", [1, 2, 3])
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    seed=st.integers(0, 2**16),
)
def test_every_shard_is_done_once(engines: int, sizes: list[int], seed: int) -> None:
    board = Board(sources=[source := SimpleNamespace(open=True)])
    done: Counter[str] = Counter()
    lock = threading.Lock()

    def serve(number: int) -> None:
        luck = random.Random(seed * 10 + number)
        held = None
        while (assignment := board.take(number, held, None)) is not None:
            held = assignment.checkpoint.weights_digest
            queue: list[Shard] = []
            guard = threading.Lock()

            def hand_back(
                count: int, queue: list[Shard] = queue, guard: threading.Lock = guard
            ) -> Sequence[Shard]:
                with guard:
                    return [queue.pop() for _ in range(min(count, len(queue)))]

            try:
                if luck.random() < 0.1:
                    continue  # it died while it loaded
                with guard:
                    queue.extend(board.begin(number, hand_back))
                while True:
                    with guard:
                        shard = queue.pop(0) if queue else None
                    if shard is None or luck.random() < 0.1:
                        break  # finished, or died with the shard in flight
                    with lock:
                        done[shard.name] += 1
                    board.finished(number, shard)
            finally:
                board.end(number)

    threads = [
        threading.Thread(target=serve, args=(number,)) for number in range(engines)
    ]
    for thread in threads:
        thread.start()
    for number, size in enumerate(sizes):
        board.add([make_assignment(f"checkpoint{number}", size)])
    source.open = False
    board.add([])
    for thread in threads:
        thread.join()
    assert done == Counter(
        {
            f"checkpoint{number}-{i}": 1
            for number, size in enumerate(sizes)
            for i in range(size)
        }
    )
