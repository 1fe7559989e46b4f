"""A screened sweep without Ray and engines: which items each checkpoint gets, and
the same after every interruption."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from evaluator.deciding.policy import Policy
from evaluator.deciding.thresholds import Screen
from evaluator.store.records import RecordStore
from evaluator.store.run_json import Failure
from evaluator.store.schema import RECORDS
from launch.run.decide.assignments import Assignment, Shard, shards_of
from launch.run.decide.board import Board
from launch.run.decide.screening import Screening
from launch.run.events import Decided, Event
from launch.sweep.jobs import CheckpointJob
from tests.support.board import make_assignment, no_spare
from tests.support.records import Seen, records
from tests.support.stamps import ORIGIN, make_item

ITEMS = [
    make_item(number, language=language)
    for language in ("english", "swahili")
    for number in range(100)
]
SHORT = SimpleNamespace(max_new_tokens=32, expected_thought=0)
TASK: Any = SimpleNamespace(
    name="t", questions=[SimpleNamespace(item=item) for item in ITEMS], config=SHORT
)
RULE = Screen(items=40)
BRIEF = Screen(items=140)  # three looks
WHOLE = Screen(items=200)  # one look at everything


def _mark(state: str, **more: Any) -> None: ...


# The task's own tolerances count, and a sure BLOCK stops an advisory task too.
LOOSE = {"max_drop": 15, "max_drop_language": 40, "tier": "advisory"}
GATE = Policy(default={"max_drop": 1}, tasks={"t": LOOSE})
# How many of ten items each checkpoint is right on.
TRUTH = {"dense": 10, "copy": 10, "near": 8, "bad": 2}
# contexts hold an item of each language
DECIDED = {"dense": 200, "copy": 58, "near": 200, "bad": 58}


class Run:
    """One call of a sweep: the driver's loop and one engine, one after the other."""

    def __init__(
        self, folder: Path, rule: Screen = BRIEF, truth: Mapping[str, int] = TRUTH
    ) -> None:
        config = SimpleNamespace(
            screen=rule, gate=GATE, resources=SimpleNamespace(shard_items=10)
        )
        jobs = [_job(name) for name in truth]
        self.store, self.board, self.truth = RecordStore(folder), Board(), truth
        self.to_make = SimpleNamespace(open=False)
        self.told: list[Event] = []
        prepared: Any = SimpleNamespace(config=config, jobs=jobs)
        self.screening = Screening(
            prepared, self.store, self.board, self.told.append, _mark
        )
        self.board.sources = self.screening, self.to_make
        self.asked: list[tuple[str, int]] = []  # in this call: checkpoint, items

    def add(self, *names: str) -> None:
        for name in names:
            finished = self.store.finished(name, "t", name)
            assignment = _assignment(name, shards_of(TASK, finished, 10))
            held = self.screening.hold(assignment, TASK, finished)
            self.board.add([] if held else [assignment])

    def go(self, after: Callable[[], Any] = lambda: None) -> "Run":
        self.screening.poll()
        while self.board.has_work:
            assignment = self.board.take(0, None, None)
            for shard in self.board.begin(0, no_spare):
                after()
                self._answer(assignment.checkpoint.name, shard)
                self.board.finished(0, shard)
                self.screening.poll()
            self.board.end(0)
            self.screening.poll()
        return self

    def _answer(self, name: str, shard: Shard) -> None:
        right, items = (
            self.truth[name],
            [ITEMS[position] for position in shard.questions],
        )
        seen = {
            f"{each.language}/{each.item_id}": Seen(
                greedy=int(each.item_id[1:]) % 10 < right
            )
            for each in items
        }
        frame = records(name, seen, base=None if name == "dense" else "dense")
        self.store.append(
            name,
            "t",
            shard.name,
            pa.Table.from_pandas(frame, schema=RECORDS, preserve_index=False),
        )
        self.asked.append((name, len(items)))

    def counts(self) -> dict[str, int]:
        return {name: len(self.store.finished(name, "t", name)) for name in self.truth}


def _job(name: str) -> CheckpointJob:
    task: Any = SimpleNamespace(is_text=False, probes=("greedy",), formats=("open",))
    base = None if name == "dense" else "dense"
    return CheckpointJob(
        name=name, path=Path(name), model="dense", base=base, tasks={"t": task}
    )


def _assignment(name: str, shards: tuple[Shard, ...]) -> Assignment:
    base = None if name == "dense" else "dense"
    origin = structs.replace(ORIGIN, checkpoint=name, base=base)
    return replace(make_assignment(name, 0, task="t"), origin=origin, shards=shards)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    run = Run(tmp_path_factory.mktemp("whole"), RULE)
    run.add("bad", "near", "copy", "dense")
    return run.go()


def test_looks_until_the_gate_is_sure(whole):
    run = whole
    assert run.counts() == DECIDED
    assert run.board.over
    assert run.screening.items == 58 + 200 + 58
    first = run.store.finished("bad", "t", "bad")
    assert first == run.store.finished("copy", "t", "copy")
    spoken = [language for language, _ in first]
    assert (spoken.count("english"), spoken.count("swahili")) == (29, 29)
    rows = _rows(run)
    assert {
        name: (row.decision, row.asked, row.early) for name, row in rows.items()
    } == {
        "bad": ("BLOCK", 58, True),
        "copy": ("PASS", 58, True),
        "near": ("WARN", 200, False),
    }
    assert rows["bad"].looks == (40, 48, 58, 70, 84, 102, 122, 148, 178, 200)
    assert sorted(each.text for each in run.told if isinstance(each, Decided)) == [
        "screening t: BLOCK for bad after 58 of 200 items",
        "screening t: PASS for copy after 58 of 200 items",
    ]


@pytest.mark.parametrize(
    "killed_after",
    [
        pytest.param(3, marks=pytest.mark.more),
        25,
        pytest.param(40, marks=pytest.mark.more),
    ],
)
def test_resumed_run_decides_the_same(tmp_path, killed_after, whole):
    broken = Run(tmp_path / "broken", RULE)
    broken.add(*TRUTH)
    with pytest.raises(StopIteration):  # it is killed
        broken.go(iter(range(killed_after)).__next__)
    again = Run(tmp_path / "broken", RULE)
    again.add(*TRUTH)
    again.go()
    assert (_rows(again), again.counts()) == (_rows(whole), whole.counts())
    assert again.store.finished("bad", "t", "bad") == whole.store.finished(
        "bad", "t", "bad"
    )
    done = Run(tmp_path / "broken", RULE)
    done.add(*TRUTH)
    assert not done.go().asked
    assert _rows(done) == _rows(whole)
    assert done.board.over


def _rows(run: Run) -> dict[str, Any]:
    return {row.checkpoint: row for row in run.screening.rows}


def test_failed_checkpoint_ends_its_looks(tmp_path):
    run = Run(tmp_path, RULE)
    run.add(*TRUTH)
    run.screening.poll()
    run.board.failures.append(
        Failure(checkpoint="copy", stage="load", reason="it does not load")
    )
    run.go()
    assert run.counts() == DECIDED | {"copy": 40}  # the first look, which the board had
    assert run.board.over


def test_lost_base_needs_all_items(tmp_path):
    run = Run(tmp_path)
    run.board.failures.append(
        Failure(checkpoint="dense", stage="load", reason="it does not load")
    )
    run.add("copy", "bad")
    run.board.abandon(
        Failure(checkpoint="near", stage="prune", reason="no memory", attempts=3)
    )
    run.go()
    assert run.counts() == {"dense": 0, "copy": 200, "near": 0, "bad": 200}
    assert not run.screening.rows
    assert run.board.over
    assert len(run.told) == 2


def test_failed_base_answers_decide_nothing(tmp_path):
    run = Run(tmp_path)
    seen = {
        f"{each.language}/{each.item_id}": Seen(greedy=True, status="engine_error")
        for each in ITEMS
    }
    failed = pa.Table.from_pandas(
        records("dense", seen), schema=RECORDS, preserve_index=False
    )
    run.store.append("dense", "t", "000000-200", failed)
    run.add("copy", "near", "bad")
    run.go()
    assert run.counts() == dict.fromkeys(TRUTH, 200)
    assert {row.decision for row in run.screening.rows} == {"WARN"}


def test_earlier_items_count(tmp_path):
    without = Run(tmp_path, WHOLE)
    without.add(*TRUTH)
    without.go()
    run = Run(tmp_path)
    run.add(*TRUTH)
    assert not run.go().asked
    assert {(row.checkpoint, row.decision, row.asked) for row in run.screening.rows} == {
        ("copy", "PASS", 200), ("near", "WARN", 200), ("bad", "BLOCK", 200)
    }  # fmt: skip
