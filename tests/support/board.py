"""Assignments for tests of the board and of whom it serves."""

from pathlib import Path

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.probes.config import EvalConfig
from launch.run.decide.assignments import Assignment, BaseSource, Shard
from launch.run.decide.board import Board
from tests.support.stamps import ORIGIN


def _checkpoint(name: str, architecture: str = "qwen3") -> CheckpointInfo:
    return CheckpointInfo(
        name=name, path=Path(name), weights_digest=f"digest of {name}", architecture=architecture, tensors=1,
        bytes=1, dtype="float32", method=None, pattern=None, sparsity=None, calibration=None,
    )  # fmt: skip


def make_assignment(
    name: str,
    shards: int,
    architecture: str = "qwen3",
    task: str = "gazetteer",
    base: str | None = None,
) -> Assignment:
    source = None if base is None else BaseSource(name=base, task=task)
    return Assignment(
        checkpoint=_checkpoint(name, architecture),
        task=task,
        task_key=task,
        config=EvalConfig(task=task),
        origin=ORIGIN,
        base=source,
        shards=tuple(
            Shard(name=f"{name}-{number}", questions=(number,))
            for number in range(shards)
        ),
    )


def complete(board: Board, engine: int = 0) -> None:
    """Do all that an engine has taken, and what is left of it."""
    board.begin(engine)
    while hand := board.hand(engine):
        for shard in hand:
            board.finished(engine, shard)
        board.more(engine)
    board.end(engine)


def finish(board: Board, engine: int = 0, held: str | None = None) -> Assignment:
    """Take an assignment and do all of it."""
    taken = board.take(engine, held, "qwen3")
    assert taken is not None
    complete(board, engine)
    return taken
