"""Whom a run directory belongs to, what is said when it is somebody else's, and
which damaged parts are asked again."""

import json
import re
import shutil
from collections import namedtuple
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from evaluator.judging.matcher import Claim
from evaluator.store.records import RecordStore, to_table
from evaluator.store.run_json import Failure
from evaluator.store.schema import KEY, VERDICTS
from evaluator.store.verdicts import Verdicts
from launch.run.directory.rundir import (
    RunDirectory,
    set_damaged_aside,
    set_verdicts_aside,
)
from tests.support.judging import answer
from tests.support.run_directories import opened
from tests.support.stamps import make_item, stamped
from tests.support.sweeps import refused

IDENTITY = {
    "models": {"dense": "9f3c"},
    "checkpoints": [
        {"name": "wanda-0.5", "prune": {"method": "wanda", "sparsity": 0.5}}
    ],
    "tasks": {"gazetteer": "k1"},
}


def _document(path: Path) -> dict[str, Any]:
    return json.loads((path / "run.json").read_text())


def _open(
    path: Path, identity: Any = IDENTITY, needed: int = 0
) -> AbstractContextManager[RunDirectory]:
    return opened(path, identity, {"seed": 0}, needed)


def _changed(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(IDENTITY)) | changes


def test_reopened_directory_keeps_earlier_rows(tmp_path: Path) -> None:
    """Rows of this call's engines follow them, and no later mark forgets any."""
    path = tmp_path / "a" / "run"
    with _open(path) as directory:
        directory.mark("running")
    document = _document(path)
    assert (document["state"], document["identity"]) == ("running", IDENTITY)
    assert {"schema_version", "digest", "config", "provenance"} <= document.keys()
    first, second = {"engine": 0}, {"engine": 1}
    for rows, told in (([first], [first]), ([second], [first, second])):
        with _open(path) as directory:
            directory.mark("running", engine_stats=rows)
            directory.mark("finished")
        assert _document(path)["engine_stats"] == told
    assert _document(path)["state"] == "finished"


@pytest.mark.parametrize(
    ("settings", "kept"),
    [({}, True), ({"screen": None}, False), ({"gate": {"max_drop": 1}}, False)],
)
def test_screening_rows_are_kept(tmp_path: Path, settings, kept) -> None:
    usual = {"screen": {"items": 100}, "gate": {"max_drop": 2}}
    row = {"checkpoint": "wanda-0.5", "task": "t", "out": True}
    with opened(tmp_path, IDENTITY, usual, 0) as directory:
        directory.mark("running", screening=[row])
    with opened(tmp_path, IDENTITY, usual | settings, 0) as again:
        again.mark("running")
    assert _document(tmp_path).get("screening") == ([row] if kept else None)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"models": {"dense": "9f3c", "b": "2"}}, 'models.b is null there, "2" here'),
        (
            {"checkpoints": [{"name": "wanda-0.5", "prune": {"sparsity": 0.6}}]},
            'checkpoints.0.prune.method is "wanda" there, null here',
        ),
        ({"checkpoints": []}, "checkpoints is ["),
        (
            {"tasks": {"gazetteer": "k2"}},
            'tasks.gazetteer, its questions, is "k1" there, "k2" here',
        ),
    ],
)
def test_first_difference_is_named(tmp_path: Path, changes, difference: str) -> None:
    with _open(tmp_path) as directory:
        directory.mark("finished")
    told = refused(opened(tmp_path, _changed(**changes), {}, 0).__enter__)
    file = tmp_path / "run.json"
    assert told.startswith(f"{file}: digest: the directory belongs to another sweep (")
    assert difference in told


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a readable run file: Invalid JSON"),
        (
            '{"digest": "d", "schema_version": 99}',
            "schema_version: 99 was written by another version of Resurface",
        ),
        ("[]", "digest: missing; this is not a run directory of Resurface"),
        ("{}", "digest: missing; this is not a run directory of Resurface"),
        ('{"digest": "d", "identity": 3}', "identity: Input should be an object"),
    ],
)
def test_no_run_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "run.json").write_text(content)
    told = refused(opened(tmp_path, IDENTITY, {}, 0).__enter__)
    assert told.startswith(f"{tmp_path / 'run.json'}: {message}")


def test_full_disk_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 5 * 2**20))
    told = refused(opened(tmp_path / "run", IDENTITY, {}, 10 * 2**20).__enter__)
    assert "--out: the disk has 5 MiB free, the run needs about 10 MiB" in told
    assert list(tmp_path.iterdir()) == []


FAILED = {"checkpoint": "dense", "stage": "load", "reason": "no"}


def _ended(path: Path, *failures: dict[str, Any]) -> None:
    with _open(path) as directory:
        directory.mark("finished_with_failures", failures=list(failures))


def _again(
    path: Path, *, measured: bool = False, **more: Any
) -> AbstractContextManager[RunDirectory]:
    return opened(
        path,
        _changed(models={"dense": "1111"}, **more),
        {},
        0,
        measured=lambda name: measured,
    )


def test_failures_are_a_table(tmp_path: Path) -> None:
    """It is there while there are failures, also if no report follows."""
    table = tmp_path / "tables" / "failures.csv"
    with _open(tmp_path) as directory:
        directory.note_failures([Failure(**FAILED)])
        assert table.read_text().splitlines()[1] == "dense,load,,,,,,1,no"
        directory.note_failures([])
        assert not table.exists()


def test_failed_checkpoint_may_be_mended(tmp_path: Path) -> None:
    _ended(tmp_path, FAILED, {"reason": "of nothing"})
    with _open(tmp_path) as directory:
        (failure,) = directory.earlier_failures
        assert (failure.checkpoint, failure.reason) == ("dense", "no")
        assert (directory.was_ended, directory.mended) == (True, ())
    with _again(tmp_path) as directory:
        assert directory.mended == ("dense",)
        directory.mark("interrupted", failures=[])
    assert _document(tmp_path)["identity"]["models"] == {"dense": "1111"}
    with _again(tmp_path) as again:
        assert (again.was_ended, again.mended) == (False, ())


@pytest.mark.parametrize(
    ("failures", "measured", "more", "told"),
    [
        ([], False, {}, 'models.dense is "9f3c" there, "1111" here'),
        ([FAILED | {"checkpoint": "other"}], False, {}, "models.dense"),
        ([FAILED], True, {}, "models.dense"),
        ([FAILED], False, {"tasks": {"gazetteer": "k2"}}, "tasks.gazetteer"),
    ],
)
def test_other_changes_are_refused(tmp_path, failures, measured, more, told):
    _ended(tmp_path, *failures)
    assert told in refused(_again(tmp_path, measured=measured, **more).__enter__)


def _two(*names: str) -> dict[str, Any]:
    made = [f"{name}-wanda" for name in names]
    return {
        "models": dict.fromkeys(names, "9f3c"),
        "bases": dict.fromkeys(names) | {f"{name}-wanda": name for name in names},
        "checkpoints": [{"name": name} for name in made],
        "tasks": {name: {"gazetteer": "k"} for name in (*names, *made)},
    }


def test_unusable_checkpoint_may_come_later(tmp_path: Path) -> None:
    """One that nobody said could not be used may not."""
    lost = ("a", "a-wanda")
    failures = [FAILED | {"checkpoint": name} for name in lost]
    with opened(tmp_path, _two("b"), {}, 0, unusable=lost) as directory:
        directory.mark("finished_with_failures", failures=failures)
    for _ in range(2):  # the second time, nobody has failed any more
        with opened(
            tmp_path, _two("a", "b"), {}, 0, measured=lambda name: False
        ) as directory:
            directory.mark("finished", failures=[])
    told = refused(opened(tmp_path, _two("a", "b", "c"), {}, 0).__enter__)
    assert "bases.c" in told
    assert " is null there" in told


# ---- damaged parts


BASES = {"dense": None, "merged": "dense", "wanda": "merged"}  # of each checkpoint
TASKS = ("plain", "compared")
WHOLE = {f"{name} {task}": 2 for name in BASES for task in TASKS}  # parts


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    made = RecordStore(tmp_path)
    for name, task, number in product(BASES, TASKS, range(2)):
        record = stamped(
            replace(make_item(number), task=task), "greedy", checkpoint=name, text="a"
        )
        made.append(name, task, f"{number:06d}-1", to_table([record]))
    return made


def _prepared() -> Any:
    tasks = [
        SimpleNamespace(
            name=name, config=SimpleNamespace(references=name == "compared")
        )
        for name in TASKS
    ]
    jobs = [SimpleNamespace(name=name, base=base) for name, base in BASES.items()]
    return SimpleNamespace(jobs=jobs, asked=dict.fromkeys(BASES, tasks))


def _left(store: RecordStore) -> dict[str, int]:
    return {
        f"{name} {task}": len(store.parts(name, task))
        for name in BASES
        for task in TASKS
    }


@pytest.mark.parametrize(
    ("damaged", "begins", "ends"),
    [
        ({}, "", ""),
        (
            {"wanda": 1},
            "1 part is damaged, and moved to ",
            "); its items are evaluated again",
        ),
        (
            {"dense": 2, "merged": 2},
            "4 parts are damaged",
            ", and 1 more; their items are evaluated again",
        ),
    ],
)
def test_damaged_parts_are_moved(store, tmp_path, damaged, begins, ends) -> None:
    expected = dict(WHOLE)
    for name, count in damaged.items():
        expected[f"{name} plain"] -= count
        for part in store.parts(name, "plain")[:count]:
            part.write_bytes(b"PAR1")
    told: list[str] = []
    set_damaged_aside(_prepared(), store, tmp_path, told.append)
    assert len(told) == (tmp_path / "damaged").exists() == bool(damaged)
    assert all(line.startswith(begins) and line.endswith(ends) for line in told)
    assert _left(store) == expected


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ("", {"wanda compared": 1, "merged compared": 0, "dense compared": 0}),
        ("merged", {"wanda compared": 1}),
    ],
)
def test_lost_distributions_are_kept_again(store, tmp_path, kept: str, left) -> None:
    """The base of a damaged checkpoint is evaluated again, and its own base, unless
    its distributions are there; what is not compared stays."""
    (tmp_path / "references" / kept / "compared").mkdir(parents=True)
    store.parts("wanda", "compared")[0].write_bytes(b"")
    told: list[str] = []
    set_damaged_aside(_prepared(), store, tmp_path, told.append)
    assert _left(store) == WHOLE | left
    bases = re.findall(r"all of compared on (\w+) too", told[0])
    assert bases == ([] if kept else ["dense", "merged"])


@pytest.mark.parametrize("kind", ["verdicts", "controls"])
def test_damaged_verdicts_are_moved(kind: str, tmp_path: Path) -> None:
    """The file of another matcher, and one that is whole, stay."""
    claim = Claim(question="q", answers=("a",), response="a")
    key: tuple[str | int, ...] = ("english", "i0", "same", "a")
    if kind == "verdicts":
        key = tuple(
            0 if pa.types.is_integer(VERDICTS.field(name).type) else name
            for name in KEY
        )

    def written(matcher: str, task: str) -> Path:
        file = (kind, "dense", task) if kind == "verdicts" else (kind, task)
        verdicts = Verdicts(tmp_path, matcher, "digest", {file: {key: claim}})
        answer(verdicts, lambda claim: 1.0)
        folder = tmp_path / kind / matcher
        return folder.joinpath(*file[1:-1], f"{task}.parquet")

    cut, whole, others = (
        written("judge", "cut"),
        written("judge", "whole"),
        written("other", "cut"),
    )
    for path in (cut, others):
        path.write_bytes(path.read_bytes()[:-9])
    told: list[str] = []
    set_verdicts_aside(tmp_path, "judge", told.append)
    (line,) = told
    moved = tmp_path / "damaged" / cut.relative_to(tmp_path)
    assert line.startswith(f"{cut} is damaged (")
    assert line.endswith(f"), and moved to {moved}; this command judges again")
    assert [path.is_file() for path in (moved, cut, whole, others)] == [
        True,
        False,
        True,
        True,
    ]
