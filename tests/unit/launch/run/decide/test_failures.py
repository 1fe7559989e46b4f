"""Who is at fault, the checkpoint, the engine or one item; what is tried again and
where, and what is set aside."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.run.decide.assignments import Assignment, shard_of
from launch.run.decide.board import Board
from launch.run.decide.failures import Ledger, Trouble
from tests.support.board import complete, finish, make_assignment, no_spare

LOAD = Trouble(stage="load", reason="ValueError: head_dim")
DEATH = Trouble(stage="evaluate", reason="SIGSEGV")
WRONG = Trouble(stage="load", reason="wrong", mendable=True)


def _ledger(engines: int, attempts: int = 3) -> Ledger:
    ledger = Ledger(attempts=attempts)
    for engine in range(engines):
        ledger.devices.engines[engine] = ""
    return ledger


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_a_checkpoint_is_set_aside_after_so_many_failures_to_load(
    attempts: int,
) -> None:
    ledger = _ledger(1, attempts)
    assert [ledger.failed(0, "a", LOAD) for _ in range(attempts)] == [False] * (
        attempts - 1
    ) + [True]
    setback = ledger.setback("a", "load", "no")
    assert (setback.engines, setback.attempts) == ((0,), attempts)


def test_failures_in_a_row_count_deaths_less_wrong_input_once_and_deadly_items_eight_times() -> (
    None
):
    ledger = _ledger(1)
    for _ in range(10):
        assert not ledger.failed(0, "a", LOAD)
        assert not ledger.failed(0, "a", DEATH)
        assert "a" in ledger.doubtful
        ledger.went_well(0, "a")
        assert "a" not in ledger.doubtful
    ledger = _ledger(1)
    assert [ledger.failed(0, "a", DEATH) for _ in range(6)] == [False] * 5 + [True]
    assert _ledger(1).failed(0, "a", WRONG)
    two = _ledger(2)
    assert not two.failed(0, "a", WRONG)
    assert not two.may_take(0, "a")
    assert two.failed(1, "a", WRONG)
    ledger = _ledger(1)
    assert [ledger.lost_item("a") for _ in range(8)] == [False] * 7 + [True]
    assert not ledger.lost_item("b")


def test_an_engine_leaves_what_it_failed_with_to_another_until_that_is_gone_or_succeeds_or_fails() -> (
    None
):
    ledger = _ledger(2)
    ledger.failed(0, "a", LOAD)
    assert (
        ledger.may_take(0, "a"),
        ledger.may_take(1, "a"),
        ledger.may_take(0, "b"),
    ) == (False, True, True)
    del ledger.devices.engines[1]
    assert ledger.may_take(0, "a")
    ledger.devices.engines[1] = ""
    ledger.went_well(1, "a")
    assert ledger.may_take(0, "a")
    ledger.failed(0, "a", LOAD)
    assert not ledger.may_take(0, "a")
    ledger.failed(1, "a", LOAD)
    assert [ledger.may_take(engine, "a") for engine in (0, 1)] == [True, True]
    # One that fails with a checkpoint again and again is spared it while others can.
    ledger = _ledger(2)
    takes = []
    for _ in range(3):
        ledger.failed(0, "a", LOAD)
        ledger.went_well(1, "a")
        takes.append((ledger.may_take(0, "a"), ledger.may_take(1, "a")))
    assert takes == [(True, True), (True, True), (False, True)]


def test_an_engine_that_fails_with_different_checkpoints_has_to_load_a_known_one() -> (
    None
):
    ledger = _ledger(1)
    for name in "abc":
        ledger.failed(0, name, LOAD)
    assert ledger.remedy(0) == "retire"  # none is known
    ledger.went_well(0, "good")
    assert ledger.remedy(0) == "go on"
    ledger.loaded(0, make_assignment("good", 1).checkpoint)
    remedies = []
    for name in "aabbcd":
        ledger.failed(0, name, LOAD)
        remedies.append(ledger.remedy(0))
    assert remedies == ["go on"] * 4 + ["probe"] * 2
    ledger.loaded(0, make_assignment("good", 1).checkpoint)  # the probe
    ledger.failed(0, "d", LOAD)
    assert ledger.remedy(0) == "go on"


def test_one_checkpoint_alone_never_retires_an_engine_but_a_process_that_does_not_start_does() -> (
    None
):
    for attempts in (1, 3):
        ledger = _ledger(1, attempts)
        for _ in range(20):
            ledger.failed(0, "a", DEATH)
            assert ledger.remedy(0) == "go on"
    ledger = _ledger(2)
    assert [ledger.not_started(0) for _ in range(3)] == ["go on", "go on", "retire"]
    assert ledger.not_started(1) == "go on"
    ledger.loaded(1, make_assignment("good", 1).checkpoint)
    assert [ledger.not_started(1) for _ in range(3)] == ["go on", "go on", "retire"]


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
def test_suspects_after_all_deaths_but_one(attempts: int) -> None:
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
    board = Board(Ledger(attempts=attempts))
    for engine in range(engines):
        board.join(engine)
    return board


def test_a_checkpoint_that_does_not_load_is_tried_last_and_then_set_aside() -> None:
    board = _board()
    board.add(
        [
            make_assignment("broken", 2),
            make_assignment("broken", 1, task="xquad"),
            make_assignment("good", 1),
        ]
    )
    assert _take(board).checkpoint.name == "broken"
    assert board.failed(0, LOAD) == "go on"
    assert finish(board).checkpoint.name == "good"
    for _ in range(2):
        assert _take(board).checkpoint.name == "broken"
        board.failed(0, LOAD)
    (setback,) = board.setbacks
    assert (setback.checkpoint, setback.stage, setback.task) == ("broken", "load", "")
    assert (setback.reason, setback.engines, setback.attempts) == (
        "ValueError: head_dim",
        (0,),
        3,
    )
    assert board.over
    assert board.take(0, None, None) is None


def test_what_reads_the_answers_of_a_base_that_was_set_aside_goes_with_it_and_the_rest_stays() -> (
    None
):
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
    board.failed(0, LOAD)
    assert len(board.setbacks) == 3
    board.add(
        [
            make_assignment("late", 1, base="dense"),
            make_assignment("late", 1, task="xquad"),
        ]
    )
    told = [
        (each.checkpoint, each.stage, each.task, each.reason) for each in board.setbacks
    ]
    assert told == [
        ("dense", "load", "", "ValueError: head_dim"),
        ("wanda", "evaluate", "gazetteer", "its base 'dense' was set aside"),
        ("last", "evaluate", "gazetteer", "its base 'wanda' was set aside"),
        ("late", "evaluate", "gazetteer", "its base 'dense' was set aside"),
    ]
    left = {finish(board).part for _ in range(3)}
    assert left == {("wanda", "xquad"), ("other", "gazetteer"), ("late", "xquad")}
    assert board.over


def test_a_base_that_has_its_records_may_fail_and_what_another_engine_is_at_is_waited_for() -> (
    None
):
    board = _board(attempts=1)
    board.add([make_assignment("dense", 1), make_assignment("wanda", 1, base="dense")])
    assert finish(board).checkpoint.name == "dense"
    board.add([make_assignment("dense", 1, task="xquad")])
    assert board.take(0, "digest of dense", "qwen3").part == ("dense", "xquad")
    board.failed(0, LOAD)
    assert finish(board).part == ("wanda", "gazetteer")
    assert [each.checkpoint for each in board.setbacks] == ["dense"]
    board = _board(2, attempts=1)
    board.add([make_assignment("dense", 4)])
    _take(board, 0)
    assert len(_take(board, 1).shards) == 2
    board.failed(0, LOAD)
    assert board.setbacks == []
    complete(board, 1)
    assert len(finish(board, 1).shards) == 2
    assert board.setbacks == []


def test_answers_that_all_fail_are_believed_when_two_engines_say_so_or_the_only_one() -> (
    None
):
    board = _board(2)
    board.add([make_assignment("nan", 3), make_assignment("reads", 1, base="nan")])
    first = _take(board, 0)
    one, two, three = board.begin(0, no_spare)
    assert board.doubts(0, one)
    again = _take(board, 1)
    assert again.shards == (one,)
    assert again.part == first.part
    board.begin(1, no_spare)
    assert not board.doubts(1, one)
    board.finished(1, one, "NaN")
    board.end(1)
    for shard in (two, three):
        assert not board.doubts(0, shard)
        board.finished(0, shard, "NaN")
    board.end(0)
    told = [
        (each.checkpoint, each.stage, each.task, each.reason) for each in board.setbacks
    ]
    assert told == [
        ("nan", "evaluate", "gazetteer", "NaN"),
        ("reads", "evaluate", "gazetteer", "its base 'nan' was set aside"),
    ]
    assert board.over
    board = _board()
    board.add([make_assignment("some", 2), make_assignment("reads", 1, base="some")])
    _take(board)
    one, two = board.begin(0, no_spare)
    assert not board.doubts(0, one)
    board.finished(0, one, "NaN")
    board.finished(0, two)
    board.end(0)
    assert finish(board).checkpoint.name == "reads"
    assert board.setbacks == []


def _evaluate(
    board: Board,
    engine: int,
    deadly: set[tuple[str, int]],
    done: dict,
    luck: random.Random,
) -> int:
    """Work until there is none, dying of deadly items; how many engines it took."""
    deaths = 0
    while (assignment := board.take(engine, None, None)) is not None:
        name, refusal = assignment.checkpoint.name, assignment.refusal
        queue = list(board.begin(engine, no_spare))
        for number, shard in enumerate(queue):
            # others are in flight beside it
            begun = queue[number : number + luck.randint(1, 4)]
            if refusal is None and any(
                (name, question) in deadly
                for each in begun
                for question in each.questions
            ):
                deaths += 1
                board.failed(engine, DEATH)
                break
            for question in shard.questions:
                done.setdefault((name, question), []).append(refusal or "ok")
            measured = any(
                said == ["ok"] for (of, _), said in list(done.items()) if of == name
            )
            board.finished(engine, shard, None if measured else refusal)
        board.end(engine)
    return deaths


@pytest.mark.parametrize("killer", [0, 7, 19, 20, 55, 99])
@pytest.mark.parametrize("attempts", [1, 3])
def test_the_item_that_kills_engines_is_found_and_all_others_are_done(
    killer: int, attempts: int
) -> None:
    board = _board(attempts=attempts)
    board.add([_assignment("a", 100), _assignment("b", 30)])
    done: dict[tuple[str, int], list[str]] = {}
    deaths = _evaluate(board, 0, {("a", killer)}, done, random.Random(killer))
    assert {item: said for item, said in done.items() if said != ["ok"]} == {
        ("a", killer): ["SIGSEGV"]
    }
    assert len(done) == 130
    (setback,) = board.setbacks
    assert (setback.checkpoint, setback.stage, setback.task, setback.question) == (
        "a",
        "item",
        "gazetteer",
        killer,
    )
    assert deaths <= 12


@settings(max_examples=60, deadline=None)
@given(
    items=st.integers(1, 130),
    size=st.integers(1, 25),
    engines=st.integers(1, 3),
    deadly=st.sets(st.integers(0, 129), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_whatever_kills_every_item_is_done_or_refused_or_its_checkpoint_set_aside(
    items, size, engines, deadly, seed
):
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

    def work(number: int) -> int:
        return _evaluate(board, number, killers, done, random.Random(seed + number))

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
    lost = {each.checkpoint for each in board.setbacks if each.stage != "item"}
    for name in ("a", "c"):
        assert counts[name] == items or name in lost
    assert ("c" in lost) == (counts["a"] < items or len(killers) == items)
    found = {each.question for each in board.setbacks if each.stage == "item"}
    assert found <= {question for _, question in killers}
    if "a" not in lost:
        assert found == {question for _, question in killers}
