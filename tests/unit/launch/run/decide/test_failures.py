"""The retry law: who is at fault, the checkpoint, the engine or one item; what is
tried again and where, and what is set aside."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.store.run_json import Failure, Stage
from launch.run import attempts
from launch.run.decide.assignments import Assignment, begun, halves_of, shard_of
from launch.run.decide.board import Board
from launch.run.decide.nodes import suspected_nodes
from launch.run.events import (
    Advanced,
    Attempt,
    Event,
    GaveUp,
    Loaded,
    Planned,
    Recorded,
    Started,
)
from launch.run.state import RunState, advance
from tests.support.board import complete, finish, make_assignment
from tests.support.stamps import make_item


def _failure(name: str, what: str = "") -> Failure:
    stage: Stage = "evaluate" if "!" in what else "load"
    return Failure(checkpoint=name, stage=stage, reason="no", mendable="?" in what)


OUTCOMES = {
    "-": "start", "*": "job", "/": "node", "x": "item", "c": "alike", "!": "death",
    "?": "input", "!?": "input",
}  # fmt: skip


class Law:
    """A checkpoint, an engine, and what happens: the checkpoint does not load (""), or
    kills ("!"); its files are wrong ("?"); it finishes a shard ("+"), or loads ("=");
    the engine does not start ("-"); a job fails ("*"), or loses its node ("/"); an item
    is deadly ("x"); all answers of a shard fail, also on a second engine ("c")."""

    def __init__(self, engines: int, limit: int) -> None:
        self.engines, self.limit = {*range(engines)}, limit
        self.log: attempts.Log = ()
        self.known = False

    def tries(self, name: str) -> str:
        failed = attempts.unfit(self.log, self.limit).get(name, set())
        return "".join(
            str(each)
            for each in self.engines
            if each not in failed or self.engines - {each} <= failed
        )

    def decide(self, event: str) -> str:
        name, engine, what = event[0], int(event[1]), event[2:]
        doubtful = attempts.is_doubtful(self.log, engine, self.limit)
        if what == "+":
            self._add(Advanced(engine=engine, checkpoint=name, task="", items=1))
            return ""
        if what == "=":
            if doubtful:
                self._add(Attempt(engine=engine, outcome="sound"))
            self._add(Loaded(engine=engine, checkpoint=name))
            self.known = True
            return ""
        outcome = OUTCOMES.get(what) or OUTCOMES.get(what.rstrip("?"), "load")
        self._add(Attempt(engine=engine, checkpoint=name, outcome=outcome))
        match outcome:
            case "start":
                ends = attempts.ends_engine(self.log, engine, self.limit)
                return "retire" * ends
            case "job" | "node":
                failure, lost = _failure(name, what), outcome == "node"
                found = attempts.given_up(self.log, failure, self.limit, lost=lost)
                return "aside" * (found is not None)
            case "item":
                return "aside" * attempts.has_deadly_items(self.log, name)
            case "alike":
                return ""
        others = self.engines - {engine}
        aside = attempts.is_hopeless(self.log, name, others, self.limit)
        doubtful = attempts.is_doubtful(self.log, engine, self.limit)
        remedy = "probe" if self.known else "retire"
        return " ".join(["aside"] * aside + [remedy] * doubtful)

    def _add(self, event: Event) -> None:
        self.log = attempts.after(self.log, event)


# engines, attempts, history: decisions, by event: engines that may try `a` next
LAW = """
1 1 a0                          : 1 aside                   : 0
1 3 a0 a0 a0                    : 3 aside                   : 0
1 1 a0! a0! a0! a0!             : 4 aside                   : 0
1 3 a0! a0! a0! a0! a0! a0!     : 6 aside                   : 0
1 3 a0? a0!?                    : 1 aside, 2 aside          : 0
2 3 a0? a1?                     : 2 aside                   : 01
1 1 a0*                         : 1 aside                   : 0
1 3 a0* a0* a0*                 : 3 aside                   : 0
1 3 a0*?                        : 1 aside                   : 0
1 3 a0/ a0/ a0/ a0/ a0/ a0/     : 6 aside                   : 0
1 3 a0x a0x a0x a0x a0x a0x a0x b0x a0x : 9 aside           : 0
1 3 a0 a0! a0+ a0 a0! a0+ a0 a0! a0+ a0 a0! a0+ :           : 0
2 3 a0                          :                           : 1
2 3 a0 a1+                      :                           : 01
2 3 a0 a1                       :                           : 01
2 3 a0 a1+ a0 a1+               :                           : 01
2 3 a0 a1+ a0 a1+ a0 a1+        :                           : 1
1 3 a0 b0 c0                    : 3 retire                  : 0
1 3 g0= a0 a0 b0 b0 c0 d0       : 6 probe, 7 probe          : 0
1 3 g0= a0 b0 c0 g0= d0         : 4 probe                   : 0
1 3 g0= a0 a0 a0 a0             : 4 aside, 5 aside          : 0
1 1 g0= a0 b0                   : 2 aside, 3 aside probe    : 0
1 3 g0= a0- a0- a0-             : 4 retire                  : 0
1 3 a0- g0= a0- a0- a0-         : 5 retire                  : 0
1 1 a0-                         : 1 retire                  : 0
"""


@pytest.mark.parametrize("row", LAW.strip().splitlines(), ids=lambda row: row[:24])
def test_history_decides(row: str) -> None:
    history, decisions, tries = (each.strip() for each in row.split(":"))
    engines, limit, *events = history.split()
    law = Law(int(engines), int(limit))
    found = enumerate(map(law.decide, events), 1)
    told = [f"{n} {each}" for n, each in found if each]
    assert told == decisions.split(", ") * bool(decisions)
    assert law.tries("a") == tries
    assert "0" in law.tries("z")


# attempts; then at each death: shards that were left, by their items, what is proven,
# and what is evaluated alone
DEATHS = """
1; 01 23 45 > unknown 01 23
3; 01 23 45 > unknown; 01 23 45 > unknown 01 23
1; 0123 > a shard 01 23; 01 > a shard 0 1; 0 > an item 0
2; 0123 > a shard 01 23; 01 > a shard 0 1; 0 > unknown 0; 0 > an item 0
3; 0123 > unknown; 0123 > a shard 01 23; 01 > a shard 0 1; 0 > unknown 0; 0 > an item 0
"""


@pytest.mark.parametrize("row", DEATHS.strip().splitlines())
def test_suspects_are_halved(row: str) -> None:
    """With two items in flight."""
    limit, *deaths = row.split("; ")
    log: attempts.Log = ()
    for row in deaths:
        shards, proven = row.split(" > ")
        left = [shard_of(tuple(map(int, each))) for each in shards.split()]
        spans = tuple(shard.span for shard in begun(left, 2))
        part = "a", "task"
        death = Attempt(checkpoint="a", outcome="death", shards={"task": spans})
        log = (*log, death)
        alone = [
            shard
            for shard in left
            if attempts.is_suspect(log, part, shard.span, int(limit))
        ]
        guilty = "unknown"
        if len(left) == 1 and alone:
            found = halves_of(alone[0])
            if len(found) > 1:
                guilty, alone = "a shard", list(found)
            elif attempts.is_guilty(log, part, alone[0].span, int(limit)):
                guilty = "an item"
        names = ["".join(map(str, shard.questions)) for shard in alone]
        assert " ".join([guilty, *names]) == proven


def test_failure_names_engines_and_attempts() -> None:
    log = tuple(
        Attempt(engine=engine, checkpoint="a", outcome="load") for engine in (0, 1, 1)
    )
    found = attempts.located(log, _failure("a"), {0: {"b", "a"}, 1: {"c"}})
    assert (found.engine, found.node, found.attempts) == ("0, 1", "a, b, c", 3)


def _of_events(*events: Event) -> attempts.Log:
    state = RunState()
    for event in events:
        state = advance(state, event, 0.0)
    return state.attempts


def test_resumed_run_goes_on_counting() -> None:
    """Of what is unfinished and was not given up. Its engines are others, and wrong
    files may be right now."""
    planned = Planned({name: {"t": 9} for name in ("a", "b", "lost", "done")})
    names = ("a", "a", "lost", "done")
    log = _of_events(
        planned,
        *(Attempt(engine=0, checkpoint=name, outcome="load") for name in names),
        Attempt(engine=0, checkpoint="b", outcome="input"),
        Attempt(engine=0, outcome="start"),
        GaveUp(_failure("lost")),
        Recorded(checkpoint="done", task="t", items=9),
        Started(),
        planned,
    )
    assert [each.checkpoint for each in log] == ["a", "a"]
    assert attempts.unfit(log, 3)["a"] == {-1}
    log = (*log, Attempt(engine=0, checkpoint="a", outcome="load"))
    assert attempts.is_hopeless(log, "a", set(), 3)
    assert attempts.located(log, _failure("a"), {}).engine == "0"
    log = attempts.after(log, Advanced(engine=1, checkpoint="a", task="t", items=1))
    assert attempts.row(log, "a") == ()


def test_resumed_suspects_are_alone() -> None:
    board, death = _board(), Attempt(checkpoint="a", outcome="death", shards={"gazetteer": ((20, 39),)})  # fmt: skip
    for _ in range(2):
        board.bus.report(death)
    board.add([_assignment("a", 60)])
    taken = [[each.span for each in finish(board).shards] for _ in range(2)]
    assert taken == [[(0, 19), (40, 59)], [(20, 39)]]


@pytest.mark.parametrize(
    ("rooms", "retired", "serving", "suspected"),
    [
        ("aaaab", "a", "", ""),
        ("aaaab", "aa", "", "a"),
        ("aaaab", "aa", "a", ""),
        ("aaaa", "aa", "", ""),  # no other node has room
        ("aaaabb", "aabb", "", ""),
    ],
)
def test_node_of_retired_engines(rooms, retired, serving, suspected):
    counts = map(Counter, (rooms, retired, serving))
    assert suspected_nodes(*counts) == list(suspected)


# ---- the board


def _assignment(name: str, items: int, size: int = 20, **more: str) -> Assignment:
    cuts = [
        tuple(range(start, min(items, start + size))) for start in range(0, items, size)
    ]
    return replace(make_assignment(name, 0, **more), shards=tuple(map(shard_of, cuts)))


def _take(board: Board, engine: int = 0) -> Assignment:
    return board.take(engine, None, None)


def _board(engines: int = 1, limit: int = 3) -> Board:
    questions = [SimpleNamespace(item=make_item(number)) for number in range(130)]
    asked = {"gazetteer": questions, "again": questions}
    board = Board(attempts=limit, questions=asked)
    for engine in range(engines):
        board.join(engine, host="node")
    return board


def _fail(board: Board, engine: int = 0) -> str:
    name = board._busy[engine].first.name
    return board.failed(engine, _failure(name))


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
    board = _board(limit=1)
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
        ("dense", "load", "", "no"),
        ("wanda", "evaluate", "gazetteer", "its base 'dense' was set aside"),
        ("last", "evaluate", "gazetteer", "its base 'wanda' was set aside"),
        ("late", "evaluate", "gazetteer", "its base 'dense' was set aside"),
    ]
    left = {finish(board).part for _ in range(3)}
    assert left == {("wanda", "xquad"), ("other", "gazetteer"), ("late", "xquad")}
    assert board.over


def test_complete_base_may_fail() -> None:
    """Its readers have its answers."""
    board = _board(limit=1)
    board.add([make_assignment("dense", 1), make_assignment("wanda", 1, base="dense")])
    finish(board)
    board.add([make_assignment("dense", 1, task="xquad")])
    assert board.take(0, "digest of dense", "qwen3").part == ("dense", "xquad")
    _fail(board)
    assert finish(board).part == ("wanda", "gazetteer")
    assert [each.checkpoint for each in board.failures] == ["dense"]


def test_work_of_another_engine_is_awaited() -> None:
    board = _board(2, limit=1)
    board.add([make_assignment("dense", 4)])
    for engine in (0, 1):
        assert len(_take(board, engine).shards) == 4
    _fail(board)
    assert board.failures == []
    complete(board, 1)
    assert (board.failures, board.over) == ([], True)


def test_doubted_shard_goes_to_another_engine() -> None:
    board = _board(2)
    board.add([make_assignment("nan", 2), make_assignment("reads", 1, base="nan")])
    _take(board, 0)
    one, two = board.begin(0)
    assert board.doubts(0, one)
    assert _take(board, 1).shards == (one,)
    board.begin(1)
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


def test_engine_that_doubts_a_shard_takes_it_where_the_other_one_failed() -> None:
    board = _board(2)
    board.add([make_assignment("nan", 1)])
    _take(board, 1)
    _fail(board, 1)
    _take(board, 0)
    (shard,) = board.begin(0)
    assert board.doubts(0, shard)
    board.end(0)
    assert _take(board, 0).shards == (shard,)


def _evaluate(
    board: Board,
    engine: int,
    deadly: set[tuple[str, str, int]],
    done: dict,
    luck: random.Random,
) -> Iterator[None]:
    """Work until there is none, dying of deadly items; others work in between."""
    while not board.over:
        if (assignment := board.take(engine, None, None)) is None:
            yield
            continue
        name, refusal = assignment.checkpoint.name, assignment.refusal
        yield
        if luck.random() < 0.1:  # it gave up before it loaded
            board.end(engine)
            continue
        board.begin(engine)
        while hand := board.hand(engine):
            # others are in flight beside it
            begun = hand[: luck.randint(1, 4)]
            asked = {
                (name, shard.task, each) for shard in begun for each in shard.questions
            }
            if refusal is None and asked & deadly:
                board.failed(engine, _failure(name, "!"))
                break
            first, part = hand[0], (name, hand[0].task)
            for question in first.questions:
                done.setdefault((*part, question), []).append(refusal or "ok")
            measured = {each[:2] for each, said in done.items() if said == ["ok"]}
            board.finished(engine, first, None if part in measured else refusal)
            yield
            board.more(engine)
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
            _assignment("a", items, size, task="again"),
            _assignment("b", items, size),
            _assignment("c", items, size, base="a"),
            _assignment("c", items, size, task="again", base="a"),
        ]
    )
    done: dict[tuple[str, str, int], list[str]] = {}
    tasks = "gazetteer", "again"
    killers = {
        ("a", tasks[question % 2], question) for question in deadly if question < items
    }

    luck, board.sharing = random.Random(seed), engines
    working = [_evaluate(board, each, killers, done, luck) for each in range(engines)]
    while working:
        each = luck.choice(working)
        if next(each, "ended") == "ended":
            working.remove(each)
    assert board.over
    assert all(len(said) == 1 for said in done.values())
    assert {each for each in done if each[0] == "b"} == {
        ("b", "gazetteer", question) for question in range(items)
    }
    assert {item for item, said in done.items() if said != ["ok"]} <= killers
    order = [each[:2] for each in done]
    counts = Counter(order)
    lost = {(each.checkpoint, each.task) for each in board.failures if each.lost}
    whole = {name for name, task in lost if not task}
    for task in tasks:
        base, reader = ("a", task), ("c", task)
        # a base is complete before it is read
        assert reader not in order or base not in order[order.index(reader) :]
        for part in (base, reader):
            assert counts[part] == items or part in lost or part[0] in whole
        deaths = sum(each[:2] == base for each in killers)
        assert (reader in lost) == (counts[base] < items or deaths == items)
    found = {(each.task, each.item) for each in board.failures if each.stage == "item"}
    guilty = {(task, make_item(question).item_id) for _, task, question in killers}
    assert found <= guilty
    if "a" not in whole:
        assert found == guilty
