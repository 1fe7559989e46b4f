"""The board's decisions, and that no shard is ever lost or done twice whatever
engines do."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from evaluator.probes.config import EvalConfig
from launch.run.decide.assignments import Assignment, shard_of
from launch.run.decide.board import Board
from tests.support.board import complete, finish, make_assignment


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


def _useless(board: Board, engine: int = 0) -> tuple[bool, bool]:
    """Whether an engine without work ends, at once and after a long wait."""
    assert board.take(engine, None, "qwen3") is None
    found = [board.is_useless(engine, long=long) for long in (False, True)]
    return found[0], found[1]


def test_idle_engine_gives_way_to_jobs() -> None:
    board = Board(source=(source := SimpleNamespace(open=True)))
    assert _useless(board) == (False, False)  # nobody needs its GPUs
    board.short = True
    assert _useless(board) == (False, True)
    board.add([make_assignment("wanda", 1)])
    source.open = False
    assert _names(board.take(1, None, None)) == ["wanda-0"]


def test_idle_engine_ends_after_a_while() -> None:
    board = Board()
    board.add([make_assignment("dense", 1)])
    assert _names(board.take(0, None, None)) == ["dense-0"]
    assert _useless(board, 1) == (False, True)
    complete(board)
    assert _useless(board, 1) == (True, True)


def _sized(name: str, shards: int, items: int) -> Assignment:
    cuts = [tuple(range(n * items, (n + 1) * items)) for n in range(shards)]
    return replace(make_assignment(name, 0), shards=tuple(map(shard_of, cuts)))


def test_hand_is_what_is_in_flight_and_what_follows() -> None:
    """64 items each."""
    board = Board()
    board.add([_sized("dense", 12, 20)])
    board.take(0, None, None)
    assert len(board.begin(0)) == 7
    assert board.more(0) == ()
    board.finished(0, board.hand(0)[0])
    assert [shard.span for shard in board.more(0)] == [(140, 159)]
    assert board.has_work is False
    board.stop()
    board.finished(0, board.hand(0)[0])
    assert board.more(0) == ()


def test_few_shards_are_divided() -> None:
    """But a second one follows the first, as long as there are some."""
    board = Board(sharing=4)
    board.add([_sized("dense", 6, 20)])
    hands = []
    for engine in range(4):
        board.take(engine, None, None)
        hands.append(len(board.begin(engine)))
    assert hands == [1, 1, 1, 1]
    assert [len(board.more(engine)) for engine in range(3)] == [1, 1, 0]
    assert board.take(4, None, None) is None


def test_engines_join_the_largest_work() -> None:
    """If there is no other. No more engines load it than it has shards."""
    board = Board()
    board.add([make_assignment("small", 2), make_assignment("large", 8)])
    taken = [board.take(engine, None, None).part[0] for engine in range(2)]
    assert taken == ["small", "large"]
    assert board.take(2, None, None).part[0] == "large"
    board.add([make_assignment("other", 1)])
    assert board.take(3, None, None).part[0] == "other"
    for engine in range(4, 11):
        assert board.take(engine, None, None) is not None
    assert board.take(11, None, None) is None


def test_engines_join_an_awaited_base_first() -> None:
    board = Board(source=SimpleNamespace(open=True))
    waits = make_assignment("wanda", 1, base="dense")
    board.add([make_assignment("dense", 4), make_assignment("large", 9), waits])
    taken = [board.take(engine, None, None).part[0] for engine in range(3)]
    assert taken == ["dense", "large", "dense"]


def test_loaded_checkpoint_goes_on() -> None:
    """Also beside others."""
    board = Board(sharing=2)
    board.add([make_assignment("dense", 9), make_assignment("other", 1)])
    board.take(0, None, None)
    assert board.take(1, "digest of dense", "qwen3").part[0] == "dense"


def test_checkpoint_waits_for_its_base() -> None:
    board = Board()
    board.add([make_assignment("wanda", 2, base="dense"), make_assignment("dense", 3)])
    # holding its weights already is no reason
    assert board.take(0, "digest of wanda", "qwen3").part == ("dense", "gazetteer")
    for shard in board.begin(0):
        assert board.take(1, "digest of wanda", "qwen3") is None
        before = board.changes
        board.finished(0, shard)
    assert board.changes > before  # those who wait look again
    # the engine of the base need not have ended
    assert _names(board.take(1, "digest of wanda", "qwen3")) == ["wanda-0", "wanda-1"]


def test_only_the_same_task_is_awaited() -> None:
    """A base may have its records from an earlier call."""
    board = Board()
    board.add([make_assignment("dense", 1), make_assignment("dense", 1, task="xquad")])
    board.add([make_assignment("wanda", 1, base="dense")])
    board.add([make_assignment("other", 1, base="second")])
    assert board.take(0, "digest of dense", "qwen3").part == ("dense", "gazetteer")
    first, _ = board.begin(0)
    board.finished(0, first)
    # ready, though dense is not done with xquad
    assert finish(board, 1, "digest of wanda").part == ("wanda", "gazetteer")
    assert finish(board, 1).part == ("other", "gazetteer")
    assert [shard.task for shard in board.hand(0)] == ["xquad"]


def test_next_task_follows_in_the_stream() -> None:
    """Of the same checkpoint, once its base is read, if the model thinks on both or on
    neither; but nothing follows what may kill an engine."""
    board = Board()
    thinks = EvalConfig(task="t", thinking="on", chat=True)
    board.add(
        [
            _sized("wanda", 2, 20),
            make_assignment("wanda", 1, task="waits", base="dense"),
            replace(make_assignment("wanda", 1, task="thinks"), config=thinks),
            make_assignment("other", 1, task="next"),
            make_assignment("wanda", 1, task="alone"),
            make_assignment("wanda", 3, task="next"),
            make_assignment("dense", 1, task="waits"),
        ]
    )  # fmt: skip
    board._works[4].assignment = replace(board._works[4].assignment, suspect=True)
    held = "digest of wanda", "qwen3"
    assert board.take(0, *held).part == ("wanda", "gazetteer")
    hand = board.begin(0)
    assert [shard.task for shard in hand] == ["gazetteer"] * 2 + ["next"] * 3
    assert board.assignment(0, "next").part == ("wanda", "next")
    assert board.more(0) == ()
    assert finish(board, 1).part == ("dense", "waits")
    board.finished(0, hand[2])
    assert [shard.task for shard in board.more(0)] == ["waits"]
    board.end(0)
    assert board.take(0, *held).part == ("wanda", "gazetteer")


def test_awaited_task_follows_first() -> None:
    board = Board()
    for task in ("one", "plain", "two"):
        board.add([make_assignment("dense", 1, task=task)])
    for task in ("one", "two"):
        board.add([make_assignment("wanda", 1, task=task, base="dense")])
    board.take(0, None, None)
    assert [shard.task for shard in board.begin(0)] == ["one", "two", "plain"]
    assert board.more(0) == ()
    board.add([make_assignment("dense", 1, task="late")])
    assert [shard.task for shard in board.more(0)] == ["late"]


def test_remote_engines_serve_urls_only() -> None:
    """Neither kind waits for the other's work."""
    board = Board()
    board.remote.add("api")
    board.remote_engines.add(1)
    board.add([make_assignment("api", 1), make_assignment("dense", 1)])
    assert finish(board, 0).checkpoint.name == "dense"
    assert _useless(board) == (True, True)
    assert finish(board, 1).checkpoint.name == "api"
    board.add([make_assignment("dense", 1)])
    assert _useless(board, 1) == (True, True)
    assert board.has_work
