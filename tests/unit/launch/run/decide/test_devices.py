"""A base and its compressed checkpoints on one type of device: who may take what,
and what happens without one."""

from types import SimpleNamespace

from evaluator.store.run_json import Failure
from launch.run.decide.board import Board
from launch.run.decide.failures import Ledger
from tests.support.board import complete, make_assignment
from tests.support.sweeps import refused

FAMILY = ("dense", "wanda", "gptq")


def _board(*devices: str, attempts: int = 3, **bound: str) -> Board:
    """With an engine of each device, two families, and records of those that are
    `bound`."""
    board = Board(Ledger(attempts=attempts))
    for engine, device in enumerate(devices):
        board.join(engine, device)
    for name in (*FAMILY, "other"):
        family = "dense" if name in FAMILY else name
        board.bind(name, family, [bound[name]] if name in bound else [])
        board.add([make_assignment(name, 1)])
    return board


def _fail(board: Board, mendable: bool = False) -> None:
    name = board._busy[0].assignment.checkpoint.name
    failure = Failure(checkpoint=name, stage="load", reason="bad", mendable=mendable)
    board.failed(0, failure)


def _take(board: Board, engine: int) -> str | None:
    """The checkpoint that an engine is given, which it then finishes; None: there is
    nothing that it may take."""
    assignment = board._nearest(engine, None, None)
    if assignment is None:
        return None
    board._waiting.insert(0, assignment)
    taken = board.take(engine, None, None)
    complete(board, engine)
    return taken.checkpoint.name


def test_family_stays_on_one_device() -> None:
    board = _board("A100", "H100", "A100")
    assert [_take(board, engine) for engine in (0, 1, 1, 2, 0)] == [
        "dense",
        "other",
        None,
        "wanda",
        "gptq",
    ]
    assert board.over
    board = Board()
    for engine, device in enumerate(("A100", "H100", "A100")):
        board.join(engine, device)
    board.bind("dense", "dense", [])
    board.add([make_assignment("dense", 4)])
    board.take(0, None, None)
    assert board._relieve(1) is None
    assert len(board._relieve(2).shards) == 2


def test_records_of_two_devices_are_refused() -> None:
    told = refused(_board, wanda="A100", gptq="H100")
    assert "'dense' and its compressed checkpoints have records of 'A100' and," in told


def test_failure_stays_on_its_device() -> None:
    """One of another type is none: where no other is left, the same engine tries
    again."""
    board = _board("A100", "H100", "A100", dense="A100")
    assert board.take(0, None, None).checkpoint.name == "dense"
    _fail(board)
    assert "dense" in {each.checkpoint.name for each in board._waiting}
    assert [board.ledger.may_take(engine, "dense") for engine in (0, 1, 2)] == [
        False,
        False,
        True,
    ]
    board.leave(2)
    assert [board.ledger.may_take(engine, "dense") for engine in (0, 1)] == [
        True,
        False,
    ]


def test_records_bind_a_family() -> None:
    """An engine without a finished shard does not."""
    board = _board("A100", "H100", "A100")
    for engine in (0, 2):
        board.take(engine, None, None)
    _fail(board)
    # the other one is still at it
    assert board.ledger.wanted("dense") == "A100"
    board.end(2)
    assert board.ledger.wanted("dense") is None
    assert [_take(board, 1) for _ in FAMILY] == ["wanda", "gptq", "other"]
    assert _take(board, 1) == "dense"
    assert board.ledger.wanted("dense") == "H100"
    board = _board("A100", "H100", wanda="H100")
    assert _take(board, 0) == "other"
    assert _take(board, 0) is None
    assert board.upcoming(0, "digest of other", None) is None
    assert board.upcoming(1, "digest of other", None) is not None
    assert [_take(board, 1) for _ in FAMILY] == list(FAMILY)


def test_board_names_the_missing_device() -> None:
    board = _board("A100")
    board.leave(0, for_good=True)
    board.sources = [SimpleNamespace(open=True)]
    assert board.take(0, None, None) is None
    assert board.has_work
    # Input that is at fault waits for no engine of another type.
    board = _board("A100", "H100", dense="A100")
    taken = board.take(0, None, None)
    _fail(board, mendable=True)
    assert [each.checkpoint for each in board.failures] == [taken.checkpoint.name]
    board = _board("A100", dense="H100")
    assert board.lacks is None  # the other family can be done
    assert _take(board, 0) == "other"
    assert board.lacks == "H100"
    board.join(1, "H100")
    assert board.lacks is None
    board.leave(1)
    board.leave(0)
    assert board.lacks is None  # without engines, that is what is missing
