"""Checkpoints after their bases, on fake engines: the same records however many engines there are and whichever die.

A sweep without Ray: the board, threads in the place of engine workers, the store, and the stream on `FakeEngine`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from msgspec import structs

from evaluator.checkpoints.info import CheckpointInfo
from evaluator.core.errors import EngineError, InputError
from evaluator.core.records import Format, Item, Record
from evaluator.engine.fake import FakeEngine, FakeLM
from evaluator.probes.config import EvalConfig
from evaluator.probes.item import BaseAnswer, Plan
from evaluator.store.records import RecordStore, to_table
from launch.run.decide.assignments import NO_BASE, Assignment, BaseAnswers, BaseSource, Shard, ShardCollector, shards_of
from launch.run.decide.board import Board
from tests.support.letters import EOS, letter_evaluation, letter_items, letter_plans, letter_questions
from tests.support.runs import records as records_of
from tests.support.stamps import ORIGIN, STAMP, stamped

CONFIG = EvalConfig(task="toy", items=0, max_new_tokens=8, probes=("greedy", "beam", "rank", "aligned_rank"))
# Two models, each with its own pruned versions: name -> (base, seed of its language model).
CHECKPOINTS = {"a": (None, 1), "b": (None, 2), "a-wanda": ("a", 3), "a-ria": ("a", 4), "b-wanda": ("b", 5)}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _questions() -> list[Any]:
    items = [replace(item, answers=tuple(LETTERS[n % 5 :: 4])) for n, item in enumerate(letter_items(14))]
    return letter_questions(items, CONFIG)


QUESTIONS = _questions()
TASK: Any = SimpleNamespace(name="toy", questions=QUESTIONS)


def _info(name: str) -> CheckpointInfo:
    return CheckpointInfo(
        name=name, path=Path(name), weights_digest=name, architecture=name[0], tensors=1, bytes=1, dtype="float32",
        method=None, pattern=None, sparsity=None, calibration=None,
    )  # fmt: skip


def _assignments(store: RecordStore, shard_items: int) -> list[Assignment]:
    """What the driver would put on the board: pruned checkpoints first, to make it harder."""
    found = []
    for name, (base, _) in reversed(CHECKPOINTS.items()):
        shards = shards_of(TASK, store.finished(name, "toy", name), shard_items)
        origin = structs.replace(ORIGIN, checkpoint=name, weights_digest=name, base=base)
        source = None if base is None else BaseSource(name=base)
        found.append(
            Assignment(
                checkpoint=_info(name),
                task="toy",
                task_key="toy",
                config=CONFIG,
                origin=origin,
                base=source,
                shards=shards,
            )
        )
    return found


class _Worker(threading.Thread):
    """As `EngineWorker` and `EngineActor` together, with an engine that may die after some responses."""

    def __init__(self, number: int, board: Board, store: RecordStore, luck: random.Random | None) -> None:
        super().__init__()
        self._number, self._board, self._store, self._luck = number, board, store, luck
        self._queue: list[Shard] = []
        self._guard = threading.Lock()
        self.failure: Exception | None = None

    def run(self) -> None:
        held: str | None = None
        try:
            while (assignment := self._board.take(self._number, held, held and held[0])) is not None:
                held = assignment.checkpoint.name
                try:
                    self._evaluate(assignment)
                except EngineError:
                    held = None
                finally:
                    self._board.end(self._number)
        except Exception as error:  # the test's thread raises it
            self.failure = error
            self._board.stop()

    def _give_up(self, count: int) -> Sequence[Shard]:
        with self._guard:
            return [self._queue.pop() for _ in range(min(count, len(self._queue)))]

    def _plans(self, collector: ShardCollector) -> Iterator[Plan]:
        while True:
            with self._guard:
                shard = self._queue.pop(0) if self._queue else None
            if shard is None:
                return
            asked = [QUESTIONS[position] for position in shard.questions]
            collector.begin(shard, [question.item for question in asked])
            yield from letter_plans(asked, CONFIG)

    def _evaluate(self, assignment: Assignment) -> None:
        name, base = assignment.checkpoint.name, assignment.base
        with self._guard:
            self._queue = list(self._board.begin(self._number, self._give_up))
        plans, find = self._plans(collector := ShardCollector()), None
        if base is not None:
            assert base.name is not None
            table = self._store.greedy_answers(base.name, "toy")
            assert table.num_rows == len(QUESTIONS)  # all of the base's, whenever a checkpoint begins
            find = BaseAnswers(base, table).of
        lm = FakeLM(vocabulary=27, eos_ids=EOS, seed=CHECKPOINTS[name][1])
        dies = self._luck.randrange(40, 400) if self._luck and self._luck.random() < 0.5 else None
        engine = FakeEngine(lm.answer, reorder_seed=self._number, fail_after=dies)
        columns = STAMP | structs.asdict(assignment.origin)
        for item, records in letter_evaluation(plans, CONFIG, columns=columns, base=find, in_flight=5).run(engine):
            complete = collector.add(item, records)
            if complete is not None:
                shard, of_shard = complete
                self._store.append(name, "toy", shard.name, to_table(of_shard))
                self._board.finished(self._number, shard)


def _sweep(run: Path, *, engines: int, shard_items: int = 3, seed: int | None = None, kill_after: int = 0) -> None:
    store, board = RecordStore(run), Board()
    board.add(_assignments(store, shard_items))
    workers = [
        _Worker(number, board, store, None if seed is None else random.Random(100 * seed + number))
        for number in range(engines)
    ]
    for worker in workers:
        worker.start()
    while kill_after and len(list(run.glob("records/*/*/*.parquet"))) < kill_after:
        assert any(worker.is_alive() for worker in workers)
    if kill_after:
        board.stop()
    for worker in workers:
        worker.join()
        if worker.failure is not None:
            raise worker.failure


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    run = tmp_path_factory.mktemp("run")
    _sweep(run, engines=1)
    return records_of(run)


def test_each_pruned_version_is_asked_for_what_its_own_base_said(undisturbed: pd.DataFrame) -> None:
    aligned = undisturbed[undisturbed["probe"] == "aligned_rank"].set_index(["checkpoint", "item_id"])
    assert len(aligned) == len(CHECKPOINTS) * len(QUESTIONS)
    columns = ["status", "text", "option_text", "prompt_tokens"]
    for name, (base, _) in CHECKPOINTS.items():
        found, own = aligned.loc[name], aligned.loc[base or name]
        assert (found["status"] == "ok").sum() > len(QUESTIONS) / 2
        pd.testing.assert_frame_equal(found[columns], own[columns])
        ranks = found["rank"].dropna()
        assert (set(ranks) == {1}) == (base is None)
    assert not aligned.loc["a"][columns].equals(aligned.loc["b"][columns])


@pytest.mark.parametrize("seed", range(6))
def test_the_records_are_the_same_with_any_engines_and_any_deaths(
    tmp_path: Path, undisturbed: pd.DataFrame, seed: int
) -> None:
    _sweep(tmp_path, engines=1 + seed % 3, shard_items=1 + seed, seed=seed)
    assert records_of(tmp_path).equals(undisturbed)


@pytest.mark.parametrize("kill_after", [1, 4, 9, 14])
def test_a_sweep_that_is_stopped_resumes_with_the_same_records(
    tmp_path: Path, undisturbed: pd.DataFrame, kill_after: int
) -> None:
    _sweep(tmp_path, engines=2, kill_after=kill_after)
    _sweep(tmp_path, engines=1, shard_items=2)
    assert records_of(tmp_path).equals(undisturbed)


def test_what_the_base_did_not_answer_is_missing_with_a_reason(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    assert store.greedy_answers("dense", "toy").num_rows == 0
    first, second, third, *_ = [question.item for question in QUESTIONS]

    def record(item: Item, probe: str = "greedy", format: Format = "open", **columns: Any) -> Record:
        return stamped(item, probe, format, checkpoint="dense", **columns)

    records = [
        record(first, token_ids=(5, 1, 0)),
        record(first, "beam", token_ids=(7, 7)),
        record(first, format="one_shot", token_ids=(8, 8)),
        record(second, status="engine_error", text="lost"),
        record(third, format="one_shot", token_ids=(9, 9)),
    ]
    store.append("dense", "toy", "000000-3", to_table(records))
    answers = BaseAnswers(BaseSource(name="dense"), store.greedy_answers("dense", "toy"))
    assert answers.of(first) == BaseAnswer(token_ids=(5, 1, 0))
    assert answers.of(second).missing == "the engine failed on its base's greedy answer"
    assert answers.of(third).missing == "its base has no greedy answer to the open prompt in this run"
    assert BaseAnswers(BaseSource(missing=NO_BASE), None).of(first).missing == NO_BASE


def test_a_damaged_part_of_the_base_is_named(tmp_path: Path) -> None:
    path = tmp_path / "records" / "a" / "toy" / "000000.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half")
    with pytest.raises(InputError, match=r"000000\.parquet: not a readable part"):
        RecordStore(tmp_path).greedy_answers("a", "toy")
