"""Who is at fault, the checkpoint, the engine or one item; what is tried again and
where, and what is set aside."""

import random
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.store.run_json import Failure, Stage
from launch.run.decide.assignments import Assignment, Shard, shard_of
from launch.run.decide.board import Board
from launch.run.decide.failures import Ledger
from tests.support.board import complete, finish, make_assignment, no_spare
from tests.support.stamps import make_item


def _failure(name: str, stage: Stage = "load", mendable: bool = False) -> Failure:
    reason = {"load": "ValueError: head_dim", "evaluate": "SIGSEGV"}.get(stage, "no")
    return Failure(checkpoint=name, stage=stage, reason=reason, mendable=mendable)


def _ledger(engines: int = 1, attempts: int = 3) -> Ledger:
    ledger = Ledger(attempts=attempts)
    for engine in range(engines):
        ledger.engines.add(engine)
    return ledger


def _give_up(ledger: Ledger, failure: Failure, engine: int) -> bool:
    if failure.stage == "prune":
        return ledger.not_made(failure) is not None
    return ledger.failed(engine, failure)


@pytest.mark.parametrize(
    ("stage", "mendable", "engines", "attempts", "given_up_at"),
    [
        *(("load", False, 1, attempts, attempts) for attempts in (1, 2, 3, 5)),
        # halving needs some deaths
        *(("evaluate", False, 1, attempts, attempts + 3) for attempts in (1, 3)),
        ("load", True, 1, 3, 1),
        ("evaluate", True, 1, 3, 1),
        # another engine may be on another machine
        ("load", True, 2, 3, 2),
        *(("prune", False, 1, attempts, attempts) for attempts in (1, 3)),
        ("prune", True, 1, 3, 1),
    ],
)
def test_checkpoint_is_given_up(stage, mendable, engines, attempts, given_up_at):
    """After so many failures in a row, taken in turn by the engines."""
    ledger = _ledger(engines, attempts)
    failure = _failure("a", stage, mendable)
    tries = range(1, given_up_at + 1)
    given_up = [_give_up(ledger, failure, each % engines) for each in tries]
    assert given_up == [each == given_up_at for each in tries]


def test_failure_names_engines_and_attempts():
    ledger = _ledger(2)
    ledger.hosts[0] |= {"b", "a"}
    ledger.hosts[1].add("c")
    for engine in (0, 1, 1):
        ledger.failed(engine, _failure("a"))
    located = ledger.located(_failure("a"))
    assert (located.engine, located.node, located.attempts) == ("0, 1", "a, b, c", 3)
    final = [ledger.not_made(_failure("x", "prune")) for _ in range(3)][-1]
    assert (final.engine, final.attempts) == ("", 3)


def test_finished_shard_clears_the_row():
    ledger = _ledger()
    for _ in range(10):
        assert not ledger.failed(0, _failure("a"))
        assert not ledger.failed(0, _failure("a", "evaluate"))
        assert "a" in ledger.doubtful
        ledger.went_well(0, "a")
        assert "a" not in ledger.doubtful


def test_eight_deadly_items_are_too_many():
    ledger = _ledger()
    assert [ledger.lost_item("a") for _ in range(8)] == [False] * 7 + [True]
    assert not ledger.lost_item("b")


@pytest.mark.parametrize(
    ("engines", "history", "may_take"),
    [
        # "0": engine 0 fails; "0+": it finishes a shard
        (2, "0", (False, True)),
        (1, "0", (True,)),
        (2, "0 1+", (True, True)),
        (2, "0 1", (True, True)),
        # one that fails again and again is spared it while others can
        (2, "0 1+ 0 1+", (True, True)),
        (2, "0 1+ 0 1+ 0 1+", (False, True)),
    ],
)
def test_failed_work_goes_to_others(engines, history, may_take):
    ledger = _ledger(engines)
    for step in history.split():
        if step.endswith("+"):
            ledger.went_well(int(step[0]), "a")
        else:
            ledger.failed(int(step), _failure("a"))
    assert tuple(ledger.may_take(engine, "a") for engine in range(engines)) == may_take
    assert ledger.may_take(0, "b")


@pytest.mark.parametrize(
    ("attempts", "known", "history", "remedies"),
    [
        (3, False, "abc", ["go on", "go on", "retire"]),
        (3, True, "aabbcd", ["go on"] * 4 + ["probe"] * 2),
        # the probe loads: the failures were the checkpoints' fault
        (3, True, "abc+d", ["go on", "go on", "probe", "go on"]),
        # one checkpoint alone retires no engine
        (3, True, "a" * 20, ["go on"] * 20),
        (1, True, "a" * 20, ["go on"] * 20),
        (1, True, "ab", ["go on", "probe"]),
        # its process does not start
        (3, True, "---", ["go on", "go on", "retire"]),
        (3, True, "-+---", ["go on", "go on", "go on", "retire"]),
        (1, True, "-", ["retire"]),
    ],
)
def test_engine_remedy(attempts, known, history, remedies):
    """Letters: checkpoints that fail; "-": its process does not start; "+": it loads
    a known checkpoint."""
    ledger = _ledger(attempts=attempts)
    good = make_assignment("good", 1).checkpoint
    if known:
        ledger.loaded(0, good)
    found = []
    for step in history:
        if step == "+":
            ledger.loaded(0, good)
        elif step == "-":
            found.append(ledger.not_started(0))
        else:
            ledger.failed(0, _failure(step))
            found.append(ledger.remedy(0))
    assert found == remedies


def test_two_engines_make_answers_believed():
    ledger = _ledger(2)
    assert ledger.doubts(0, "nan", None)
    assert not ledger.doubts(1, "nan", 0)
    assert not ledger.doubts(0, "nan", None)
    assert not _ledger(1).doubts(0, "nan", None)


@pytest.mark.parametrize(
    ("rooms", "retired", "serving", "suspected"),
    [
        ("a4 b1", "a1", "", ""),
        ("a4 b1", "a2", "", "a"),
        ("a4 b1", "a2", "a1", ""),
        ("a4", "a2", "", ""),  # no other node has room
        ("a4 b2", "a2 b2", "", ""),
    ],
)
def test_node_of_retired_engines(rooms, retired, serving, suspected):
    def counts(text: str) -> Counter[str]:
        return Counter({each[0]: int(each[1:]) for each in text.split()})

    found = Ledger.suspected_nodes(counts(rooms), counts(retired), counts(serving))
    assert found == list(suspected)


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_suspects_are_halved(attempts: int) -> None:
    """All shards in flight are suspects after attempts - 1 deaths. One alone is halved
    then, and an item has one more.

    A guilty half is halved at its first death. An item is guilty after `attempts`
    deaths, those of its half included.
    """
    part, patience = ("a", "task"), max(1, attempts - 1)
    ledger, shards = (
        _ledger(1, attempts),
        tuple(shard_of((start, start + 1)) for start in (0, 2, 4)),
    )
    deaths = [ledger.examine(part, shards, 2) for _ in range(patience)]
    assert deaths == [("unknown", ())] * (patience - 1) + [("unknown", shards[:2])]
    ledger = _ledger(1, attempts)
    whole = shard_of((0, 1, 2, 3))
    deaths = [ledger.examine(part, (whole,), 2) for _ in range(patience)]
    assert deaths == [("unknown", ())] * (patience - 1) + [
        ("a shard", (shards[0], shards[1]))
    ]
    item = shard_of((0,))
    assert ledger.examine(part, shards[:1], 2) == ("a shard", (item, shard_of((1,))))
    more = attempts - patience  # deaths that an item has more than its half
    deaths = [ledger.examine(part, (item,), 2) for _ in range(1 + more)]
    assert deaths == [("unknown", (item,))] * more + [("an item", (item,))]


# ---- the board


def _assignment(name: str, items: int, size: int = 20, **more: str) -> Assignment:
    cuts = [
        tuple(range(start, min(items, start + size))) for start in range(0, items, size)
    ]
    return replace(make_assignment(name, 0, **more), shards=tuple(map(shard_of, cuts)))


def _take(board: Board, engine: int = 0) -> Assignment:
    return board.take(engine, None, None)


def _board(engines: int = 1, attempts: int = 3) -> Board:
    questions = [SimpleNamespace(item=make_item(number)) for number in range(130)]
    board = Board(Ledger(attempts=attempts), questions={"gazetteer": questions})
    for engine in range(engines):
        board.join(engine, host="node")
    return board


def _fail(board: Board, engine: int = 0, stage: Stage = "load") -> str:
    name = board._busy[engine].assignment.checkpoint.name
    return board.failed(engine, _failure(name, stage))


def _given_up(board: Board) -> list[tuple[str, str, str, str]]:
    return [
        (each.checkpoint, each.stage, each.task, each.reason) for each in board.failures
    ]


def test_broken_checkpoint_goes_last() -> None:
    board = _board()
    board.add(
        [
            make_assignment("broken", 2),
            make_assignment("broken", 1, task="xquad"),
            make_assignment("good", 1),
        ]
    )
    assert _take(board).checkpoint.name == "broken"
    assert _fail(board) == "go on"
    assert finish(board).checkpoint.name == "good"
    for _ in range(2):
        assert _take(board).checkpoint.name == "broken"
        _fail(board)
    located = replace(_failure("broken"), engine="0", node="node", attempts=3)
    assert board.failures == [located]
    assert board.over
    assert board.take(0, None, None) is None


def test_lost_base_takes_its_readers_along() -> None:
    board = _board(attempts=1)
    board.add(
        [
            make_assignment("dense", 2),
            make_assignment("last", 1, base="wanda"),
            make_assignment("wanda", 1, base="dense"),
            make_assignment("wanda", 1, task="xquad"),
            make_assignment("other", 1, base="second"),
        ]
    )
    assert _take(board).checkpoint.name == "dense"
    _fail(board)
    assert len(board.failures) == 3
    board.add(
        [
            make_assignment("late", 1, base="dense"),
            make_assignment("late", 1, task="xquad"),
        ]
    )
    assert _given_up(board) == [
        ("dense", "load", "", "ValueError: head_dim"),
        ("wanda", "evaluate", "gazetteer", "its base 'dense' was set aside"),
        ("last", "evaluate", "gazetteer", "its base 'wanda' was set aside"),
        ("late", "evaluate", "gazetteer", "its base 'dense' was set aside"),
    ]
    left = {finish(board).part for _ in range(3)}
    assert left == {("wanda", "xquad"), ("other", "gazetteer"), ("late", "xquad")}
    assert board.over


def test_complete_base_may_fail() -> None:
    """Its readers have its answers."""
    board = _board(attempts=1)
    board.add([make_assignment("dense", 1), make_assignment("wanda", 1, base="dense")])
    finish(board)
    board.add([make_assignment("dense", 1, task="xquad")])
    assert board.take(0, "digest of dense", "qwen3").part == ("dense", "xquad")
    _fail(board)
    assert finish(board).part == ("wanda", "gazetteer")
    assert [each.checkpoint for each in board.failures] == ["dense"]


def test_work_of_another_engine_is_awaited() -> None:
    board = _board(2, attempts=1)
    board.add([make_assignment("dense", 4)])
    _take(board, 0)
    assert len(_take(board, 1).shards) == 2
    _fail(board)
    assert board.failures == []
    complete(board, 1)
    assert len(finish(board, 1).shards) == 2
    assert board.failures == []


def test_doubted_shard_goes_to_another_engine() -> None:
    board = _board(2)
    board.add([make_assignment("nan", 2), make_assignment("reads", 1, base="nan")])
    _take(board, 0)
    one, two = board.begin(0, no_spare)
    assert board.doubts(0, one)
    assert _take(board, 1).shards == (one,)
    board.begin(1, no_spare)
    assert not board.doubts(1, one)
    board.finished(1, one, "NaN")
    board.end(1)
    assert not board.doubts(0, two)
    board.finished(0, two, "NaN")
    board.end(0)
    assert _given_up(board) == [
        ("nan", "evaluate", "gazetteer", "NaN"),
        ("reads", "evaluate", "gazetteer", "its base 'nan' was set aside"),
    ]
    assert board.over


def test_one_good_shard_is_enough() -> None:
    board = _board()
    board.add([make_assignment("some", 2), make_assignment("reads", 1, base="some")])
    _take(board)
    one, two = board.begin(0, no_spare)
    board.finished(0, one, "NaN")
    board.finished(0, two)
    board.end(0)
    assert finish(board).checkpoint.name == "reads"
    assert board.failures == []


def _evaluate(
    board: Board,
    engine: int,
    deadly: set[tuple[str, int]],
    done: dict,
    luck: random.Random,
) -> None:
    """Work until there is none, dying of deadly items; idle engines take over what is
    not begun."""
    while (assignment := board.take(engine, None, None)) is not None:
        name, refusal = assignment.checkpoint.name, assignment.refusal
        if luck.random() < 0.1:  # it gave up before it loaded
            board.end(engine)
            continue
        queue: deque[Shard] = deque()

        def hand_back(count: int, queue: deque[Shard] = queue) -> list[Shard]:
            return [queue.pop() for _ in range(min(count, len(queue)))]

        with board._changed:
            queue += board.begin(engine, hand_back)
        while True:
            with board._changed:
                if not queue:
                    break
                shard = queue.popleft()
                # others are in flight beside it
                begun = [shard, *list(queue)[: luck.randint(0, 3)]]
            asked = {(name, each) for shard in begun for each in shard.questions}
            if refusal is None and asked & deadly:
                board.failed(engine, _failure(name, "evaluate"))
                break
            for question in shard.questions:
                done.setdefault((name, question), []).append(refusal or "ok")
            measured = (of for (of, _), said in list(done.items()) if said == ["ok"])
            board.finished(engine, shard, None if name in measured else refusal)
        board.end(engine)


@settings(max_examples=60, deadline=None)
@given(
    items=st.integers(1, 130),
    size=st.integers(1, 25),
    engines=st.integers(1, 3),
    deadly=st.sets(st.integers(0, 129), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_items_are_done_or_given_up(items, size, engines, deadly, seed):
    board = _board(engines)
    board.add(
        [
            _assignment("a", items, size),
            _assignment("b", items, size),
            _assignment("c", items, size, base="a"),
        ]
    )
    done: dict[tuple[str, int], list[str]] = {}
    killers = {("a", question) for question in deadly if question < items}

    def work(number: int) -> None:
        _evaluate(board, number, killers, done, random.Random(seed + number))

    with ThreadPoolExecutor(engines) as pool:
        list(pool.map(work, range(engines)))
    assert board.over
    assert all(len(said) == 1 for said in done.values())
    assert {(name, question) for name, question in done if name == "b"} == {
        ("b", q) for q in range(items)
    }
    assert {item for item, said in done.items() if said != ["ok"]} <= killers
    order = [name for name, _ in done]
    # a base is complete before it is read
    assert "c" not in order or "a" not in order[order.index("c") :]
    counts = Counter(order)
    lost = {each.checkpoint for each in board.failures if each.lost}
    for name in ("a", "c"):
        assert counts[name] == items or name in lost
    assert ("c" in lost) == (counts["a"] < items or len(killers) == items)
    found = {each.item for each in board.failures if each.stage == "item"}
    guilty = {make_item(question).item_id for _, question in killers}
    assert found <= guilty
    if "a" not in lost:
        assert found == guilty
