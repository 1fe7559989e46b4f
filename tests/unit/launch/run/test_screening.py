"""A screened sweep without Ray and engines: who is asked what, and the same after every interruption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from evaluator.screen import Screen
from evaluator.store.records import RecordStore
from evaluator.store.schema import RECORDS
from evaluator.thresholds import Thresholds
from launch.run.board import Board
from launch.run.failures import Setback
from launch.run.screening import Screening
from launch.run.shards import shards_of
from launch.run.work import Assignment, EvalJob, Shard
from launch.sweep.jobs import CheckpointJob
from tests.support.board import make_assignment, no_spare
from tests.support.items import make_item
from tests.support.records import Seen, records
from tests.support.stamps import STAMP

ITEMS = [make_item(number, language=language) for language in ("english", "swahili") for number in range(20)]
TASK: Any = SimpleNamespace(name="t", questions=[SimpleNamespace(item=item) for item in ITEMS])
RULE = Screen(items=20)
NOTHING_SURE = Screen(items=1)  # one item says nothing surely: all is asked
# How many of ten items each checkpoint is right on.
TRUTH = {"dense": 10, "good": 9, "near": 8, "bad": 2}


class Stopped(Exception):
    """The run was killed."""


class Run:
    """One call of a sweep: the driver's loop and one engine, one after the other."""

    def __init__(self, folder: Path, rule: Screen = RULE, truth: Mapping[str, int] = TRUTH) -> None:
        config = SimpleNamespace(screen=rule, gate=Thresholds(max_drop=15), resources=SimpleNamespace(shard_items=10))
        jobs = [_job(name) for name in truth]
        self.store, self.board, self.truth = RecordStore(folder), Board(), truth
        self.told: list[str] = []
        progress: Any = SimpleNamespace(noted=self.told.append)
        prepared: Any = SimpleNamespace(config=config, jobs=jobs)
        self.screening = Screening(prepared, self.store, self.board, progress)
        self.asked: list[tuple[str, int]] = []  # in this call: checkpoint, items

    def add(self, *names: str, expected: int = 0) -> None:
        for name in names:
            finished = self.store.finished(name, "t", name)
            assignment = _assignment(name, shards_of(TASK, finished, 10))
            held = self.screening.hold(assignment, TASK, finished)
            self.board.add([] if held else [assignment], expected)

    def go(self, after: Callable[[], None] = lambda: None) -> Run:
        """Until there is nothing to do."""
        self.screening.look()
        while self.board.has_work:
            assignment = self.board.take(0, None, None)
            assert assignment is not None
            for shard in self.board.begin(0, no_spare):
                after()
                self._answer(assignment.checkpoint.name, shard)
                self.board.finished(0, shard)
                self.screening.look()
            self.board.end(0)
            self.screening.look()
        return self

    def _answer(self, name: str, shard: Shard) -> None:
        items = [ITEMS[position] for position in shard.questions]
        seen = {
            f"{each.language}/{each.item_id}": Seen(greedy=int(each.item_id[1:]) % 10 < self.truth[name])
            for each in items
        }
        base = None if name == "dense" else "dense"
        frame = records(name, seen, base=base)
        self.store.append(name, "t", shard.name, pa.Table.from_pandas(frame, schema=RECORDS, preserve_index=False))
        self.asked.append((name, len(items)))

    def counts(self) -> dict[str, int]:
        """Items with their records, of all calls."""
        return {name: len(self.store.finished(name, "t", name)) for name in self.truth}


def _job(name: str) -> CheckpointJob:
    task: Any = SimpleNamespace(is_text=False, probes=("greedy",), formats=("open",))
    base = None if name == "dense" else "dense"
    return CheckpointJob(name=name, path=Path(name), model="dense", base=base, tasks={"t": task})


def _assignment(name: str, shards: tuple[Shard, ...]) -> Assignment:
    made = make_assignment(name, 0, task="t")
    base = None if name == "dense" else "dense"
    job: EvalJob = replace(made.job, stamp=replace(STAMP, checkpoint=name, base=base))
    return replace(made, job=job, shards=shards)


def test_all_are_asked_their_anchors_and_what_is_behind_nothing_else(tmp_path):
    run = Run(tmp_path)
    run.add("bad", "near", "good", "dense")
    run.go()
    assert run.counts() == {"dense": 40, "good": 40, "near": 40, "bad": 20}
    assert run.board.over
    assert run.screening.items == 40 + 40 + 20
    anchors = run.store.finished("bad", "t", "bad")
    assert {name for name, _ in run.asked[:4]} == {"dense"}  # 4 shards, and 2 of each one's anchors
    first = [name for name, count in run.asked[4:10] for _ in range(count)]
    assert {name: first.count(name) for name in first} == {"good": 20, "near": 20, "bad": 20}
    assert len({language for language, _ in anchors}) == 2
    rows = {row.checkpoint: row for row in run.screening.rows}
    assert {name: row.out for name, row in rows.items()} == {"good": False, "near": False, "bad": True}
    bad = rows["bad"]
    assert (bad.reference, bad.anchors, bad.asked, bad.items, bad.n, bad.measure) == ("good", 20, 20, 40, 20, "open")
    assert bad.low > bad.margin == 0.0
    assert bad.reference_accuracy - bad.accuracy == pytest.approx(bad.difference)
    assert run.told == ["screening t: after 20 items each, 1 of 3 checkpoints are screened out: bad (worse than good)"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    run = Run(tmp_path_factory.mktemp("whole"))
    run.add(*TRUTH)
    return run.go()


@pytest.mark.parametrize("killed_after", [3, 5, 9, 12])
def test_a_resumed_run_decides_the_same(tmp_path, killed_after, whole):
    left = iter(range(killed_after))

    def kill() -> None:
        if next(left, None) is None:
            raise Stopped

    broken = Run(tmp_path / "broken")
    broken.add(*TRUTH)
    with pytest.raises(Stopped):
        broken.go(kill)
    again = Run(tmp_path / "broken")
    again.add(*TRUTH)
    again.go()
    assert again.screening.rows == whole.screening.rows
    assert again.counts() == whole.counts()
    assert again.store.finished("bad", "t", "bad") == whole.store.finished("bad", "t", "bad")
    done = Run(tmp_path / "broken")
    done.add(*TRUTH)
    assert not done.go().asked
    assert done.screening.rows == whole.screening.rows
    assert done.board.over


def test_against_the_gate_each_is_decided_by_itself(tmp_path):
    run = Run(tmp_path, Screen(items=20, against="gate"))
    run.board.expect(1)  # good is still being pruned
    run.add("dense", "bad", "near")
    run.go()
    assert [row.checkpoint for row in run.screening.rows if row.out] == ["bad"]
    assert run.screening.rows[0].reference == "dense"
    assert (run.counts()["near"], run.counts()["bad"]) == (40, 20)
    assert not run.board.over
    run.add("good", expected=1)
    assert run.go().counts()["good"] == 40
    assert run.board.over


def test_against_the_best_all_are_waited_for(tmp_path):
    run = Run(tmp_path)
    run.board.expect(1)
    run.add("dense", "bad", "near")
    run.go()
    assert (run.counts(), run.screening.rows) == ({"dense": 40, "good": 0, "near": 20, "bad": 20}, [])
    run.board.abandon("good", "no memory", attempts=3, mendable=False, expected=1)
    run.go()
    assert (run.counts()["near"], run.counts()["bad"]) == (40, 20)
    assert run.board.over


def test_what_is_set_aside_is_not_waited_for(tmp_path):
    run = Run(tmp_path)
    run.add(*TRUTH)
    run.screening.look()
    run.board._set_back(_does_not_load("good"))
    run.go()
    assert run.counts() == {"dense": 40, "good": 0, "near": 40, "bad": 20}
    assert run.board.over


def _does_not_load(name: str) -> Setback:
    return Setback(checkpoint=name, stage="load", reason="it does not load")


@pytest.mark.parametrize("answered", [False, True])
def test_without_answers_of_the_base_everything_is_asked(tmp_path, answered):
    run = Run(tmp_path)
    if answered:  # as text alone: nothing was measured
        run.store.append("dense", "t", "000000-40", _failed())
    else:
        run.board._set_back(_does_not_load("dense"))
    run.add("good", "bad")
    run.board.abandon("near", "no memory", attempts=3, mendable=False, expected=0)
    run.go()
    assert run.counts() == {"dense": 40 if answered else 0, "good": 40, "near": 0, "bad": 40}
    assert not run.screening.rows
    assert run.board.over
    assert len(run.told) == 2


def _failed() -> pa.Table:
    seen = {f"{each.language}/{each.item_id}": Seen(greedy=True, status="engine_error") for each in ITEMS}
    return pa.Table.from_pandas(records("dense", seen), schema=RECORDS, preserve_index=False)


def test_what_was_asked_everything_before_is_not_called_out(tmp_path):
    without = Run(tmp_path, NOTHING_SURE)
    without.add(*TRUTH)
    without.go()
    run = Run(tmp_path)
    run.add(*TRUTH)
    assert not run.go().asked
    assert {(row.checkpoint, row.out, row.asked) for row in run.screening.rows} == {
        ("good", False, 40), ("near", False, 40), ("bad", False, 40)
    }  # fmt: skip


def test_without_screening_nothing_is_held_and_the_rest_is_asked(tmp_path):
    screened = Run(tmp_path)
    screened.add(*TRUTH)
    assert screened.go().counts()["bad"] == 20
    run = Run(tmp_path)
    run.screening = Screening(
        SimpleNamespace(
            config=SimpleNamespace(screen=None, gate=Thresholds(), resources=SimpleNamespace(shard_items=10)), jobs=[]
        ),
        run.store,
        run.board,
        SimpleNamespace(),
    )
    run.add(*TRUTH)
    assert run.go().counts() == dict.fromkeys(TRUTH, 40)
    assert sum(count for _, count in run.asked) == 20
    assert run.screening.rows == []
