"""Which parts are asked again when some of them are damaged, and what is said of that."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from evaluator.judging.matcher import Verdict
from evaluator.store.records import RecordStore, to_table
from evaluator.store.schema import KEY, VERDICTS
from evaluator.store.verdicts import ControlStore, VerdictStore
from launch.run.directory.rundir import set_damaged_aside, set_verdicts_aside
from tests.support.items import make_item
from tests.support.stamps import stamped

BASES = {"dense": None, "merged": "dense", "wanda": "merged"}  # of each checkpoint
TASKS = ("plain", "compared")
WHOLE = {f"{name} {task}": 2 for name in BASES for task in TASKS}  # parts


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    made = RecordStore(tmp_path)
    for name, task, number in product(BASES, TASKS, range(2)):
        record = stamped(replace(make_item(number), task=task), "greedy", checkpoint=name, text="a")
        made.append(name, task, f"{number:06d}-1", to_table([record]))
    return made


def _prepared() -> Any:
    tasks = [SimpleNamespace(name=name, config=SimpleNamespace(references=name == "compared")) for name in TASKS]
    jobs = [SimpleNamespace(name=name, base=base) for name, base in BASES.items()]
    return SimpleNamespace(jobs=jobs, asked=dict.fromkeys(BASES, tasks))


def _left(store: RecordStore) -> dict[str, int]:
    return {f"{name} {task}": len(store.parts(name, task)) for name in BASES for task in TASKS}


@pytest.mark.parametrize(
    ("damaged", "begins", "ends"),
    [
        ({}, "", ""),
        ({"wanda": 1}, "1 part is damaged, and moved to ", "); its items are evaluated again"),
        ({"dense": 2, "merged": 2}, "4 parts are damaged", ", and 1 more; their items are evaluated again"),
    ],
)
def test_damaged_parts_alone_are_made_again_and_told_in_one_line(store, tmp_path, damaged, begins, ends) -> None:
    for name, count in damaged.items():
        for part in store.parts(name, "plain")[:count]:
            part.write_bytes(b"PAR1")
    told: list[str] = []
    set_damaged_aside(_prepared(), store, tmp_path, told.append)
    assert len(told) == (tmp_path / "damaged").exists() == bool(damaged)
    assert all(line.startswith(begins) and line.endswith(ends) for line in told)
    assert _left(store) == WHOLE | {f"{name} plain": 2 - count for name, count in damaged.items()}


def test_a_base_whose_distributions_are_gone_keeps_them_again(store: RecordStore, tmp_path: Path) -> None:
    """And its own base, with which it is compared; what is not compared stays."""
    store.parts("wanda", "compared")[0].write_bytes(b"")
    told: list[str] = []
    set_damaged_aside(_prepared(), store, tmp_path, told.append)
    assert told[0].endswith(
        "its items are evaluated again; all of compared on dense too, whose distributions are gone; "
        "all of compared on merged too, whose distributions are gone"
    )
    assert _left(store) == WHOLE | {"wanda compared": 1, "merged compared": 0, "dense compared": 0}
    assert len(list((tmp_path / "damaged").rglob("*.parquet"))) == 5


def test_a_base_whose_distributions_are_there_is_asked_nothing_again(store: RecordStore, tmp_path: Path) -> None:
    (tmp_path / "references" / "merged" / "compared").mkdir(parents=True)
    store.parts("wanda", "compared")[0].write_bytes(b"")
    store.parts("dense", "compared")[1].write_bytes(b"")
    set_damaged_aside(_prepared(), store, tmp_path)
    assert _left(store) == WHOLE | {"wanda compared": 1, "dense compared": 1}


@pytest.mark.parametrize("kind", ["verdicts", "controls"])
def test_verdicts_that_cannot_be_read_make_room(kind: str, tmp_path: Path) -> None:
    """The file of another matcher, and one that is whole, stay."""
    yes = Verdict(verdict=True, probability=0.9, status="ok")
    judged = {tuple(0 if pa.types.is_integer(VERDICTS.field(name).type) else name for name in KEY): yes}
    pairs = {("english", "i0", "gold", "a"): yes}

    def written(matcher: str, task: str) -> Path:
        if kind == "verdicts":
            return VerdictStore(tmp_path, matcher, "digest").write(("dense", task), judged)
        return ControlStore(tmp_path, matcher, "digest").write((task,), pairs)

    cut, whole, others = written("judge", "cut"), written("judge", "whole"), written("other", "cut")
    for path in (cut, others):
        path.write_bytes(path.read_bytes()[:-9])
    told: list[str] = []
    set_verdicts_aside(tmp_path, "judge", told.append)
    (line,) = told
    moved = tmp_path / "damaged" / cut.relative_to(tmp_path)
    assert line.startswith(f"{cut} is damaged (")
    assert line.endswith(f"), and moved to {moved}; this command judges again")
    assert [path.is_file() for path in (moved, cut, whole, others)] == [True, False, True, True]
