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
from evaluator.store.run_json import Failure, Served
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

SETTINGS = {
    "items": 2,
    "languages": None,
    "probes": ["greedy"],
    "seed": 0,
    "seeds": None,
}
IDENTITY: dict[str, Any] = {
    "models": {"dense": "9f3c"},
    "checkpoints": [
        {"name": "wanda-0.5", "prune": {"method": "wanda", "sparsity": 0.5}}
    ],
    "tasks": {"dense": {"gazetteer": "k1"}},
    "task_settings": {"dense": {"gazetteer": SETTINGS}},
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
    first, second = (
        Served(engine=number, checkpoint="a", device="", abilities={"top": number})
        for number in (1, 2)
    )
    for rows, told in (([first], [first]), ([second], [first, second])):
        with _open(path) as directory:
            directory.mark("running", engine_stats=rows)
            directory.mark("finished")
        numbers = [row["engine"] for row in _document(path)["engine_stats"]]
        assert numbers == [row.engine for row in told]
    abilities = [{"checkpoint": "a", "abilities": {"top": 2}}]
    assert _document(path)["engines"] == abilities
    assert _document(path)["state"] == "finished"


@pytest.mark.parametrize("changed", [False, True])
def test_changed_policy_of_the_sweep_is_newer(tmp_path: Path, changed) -> None:
    """Than what the last `gate` used and said."""
    with opened(tmp_path, IDENTITY, {"gate": {"max_drop": 2}}, 0) as directory:
        directory.mark("running")
    policies = [tmp_path / name for name in ("gate.yaml", "gate.json")]
    for path in policies:
        path.touch()
    with opened(tmp_path, IDENTITY, {"gate": {"max_drop": 2 - changed}}, 0):
        pass
    assert [path.exists() for path in policies] == [not changed] * 2


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (
            {"models": {"dense": "1111"}},
            'dense: its weights and configuration is "9f3c" there, "1111" here',
        ),
        (
            {"checkpoints": [{"name": "wanda-0.5", "prune": {"sparsity": 0.6}}]},
            'wanda-0.5: prune.method is "wanda" there, null here',
        ),
        (
            {"checkpoints": [IDENTITY["checkpoints"][0] | {"name": "dense-wanda-0.5"}]},
            "wanda-0.5: its name is 'wanda-0.5' there, 'dense-wanda-0.5' here",
        ),
        ({"engine": {"dtype": "float16"}}, "all cells: engine is null there, {"),
        (
            {"task_settings": {"dense": {"gazetteer": SETTINGS | {"seed": 1}}}},
            "dense, task gazetteer: seed is 0 there, 1 here",
        ),
    ],
)
def test_changed_cell_is_named(tmp_path: Path, changes, difference: str) -> None:
    with _open(tmp_path) as directory:
        directory.mark("finished")
    opening = opened(tmp_path, _changed(**changes), {}, 0, asked=ASKED)
    told = refused(opening.__enter__)
    file = tmp_path / "run.json"
    assert told.startswith(f"{file}: {difference}")
    assert told.endswith("; finished cells keep their settings: use a new --out")


@pytest.mark.parametrize(
    ("begun", "left"),
    [
        ({("a", "t"), ("b", "t")}, {"a": {"t": 2}, "b": {"t": 2}}),
        ({("a", "t")}, {"a": {"t": 2}}),
        (set(), {}),
    ],
)
def test_settings_hold_from_the_first_record_on(tmp_path: Path, begun, left) -> None:
    """A cell that a killed call only planned is forgotten, or takes other settings."""
    planned = {"a": {"t": 2}, "b": {"t": 2}}
    with opened(tmp_path, _of("a", "b"), {}, 0) as directory:
        directory.mark("running", planned=planned, checkpoints=[])
    now = _of("c")
    now["engine"] = None if begun else {"dtype": "float16"}
    store = SimpleNamespace(holds=lambda *cell: cell in begun)
    with opened(tmp_path, now, {}, 0, store=store) as directory:
        directory.mark("finished", planned={"c": {"t": 3}})
    document = _document(tmp_path)
    assert document["planned"] == {"c": {"t": 3}, **left}
    assert set(document["identity"]["models"]) == {"c", *left}
    assert set(document["identity"]["tasks"]) == {"c", *left}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a readable run file: Invalid JSON"),
        ('{"digest": "d", "schema_version": 99}', "schema_version: 99 was written"),
        ("{}", "digest: missing; this is not a run directory of Resurface"),
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


def _key(settings: dict[str, Any]) -> str:
    return "k1" if settings == SETTINGS else json.dumps(settings)


TASK = SimpleNamespace(
    name="gazetteer",
    key_under=_key,
    config=SimpleNamespace(items=4),
    moved_examples=lambda items: [("i1", "i2", "i3")] if items == 3 else [],
)
ASKED: Any = {"dense": [TASK]}
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
        store=SimpleNamespace(
            measured=lambda name: measured, holds=lambda name, task: True
        ),
        asked=ASKED,
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
        ([], False, {}, 'dense: its weights and configuration is "9f3c" there'),
        ([FAILED | {"checkpoint": "other"}], False, {}, "dense: its weights"),
        ([FAILED], True, {}, "dense: its weights"),
        ([FAILED], False, {"engine": {"kind": "torch"}}, "all cells: engine"),
    ],
)
def test_other_changes_are_refused(tmp_path, failures, measured, more, told):
    _ended(tmp_path, *failures)
    assert told in refused(_again(tmp_path, measured=measured, **more).__enter__)


def _settings(**changes: Any) -> dict[str, Any]:
    return {"task_settings": {"dense": {"gazetteer": SETTINGS | changes}}}


def test_moved_example_is_refused(tmp_path: Path) -> None:
    stored = _settings(items=3)
    key = _key(SETTINGS | {"items": 3})
    stored["tasks"] = {"dense": {"gazetteer": key}}
    with _open(tmp_path, _changed(**stored)) as directory:
        directory.mark("finished")
    identity = _changed(**_settings(items=4))
    told = refused(opened(tmp_path, identity, {}, 0, asked=ASKED).__enter__)
    assert "items is 3 there, 4 here: the one_shot example of 'i1' is 'i2'" in told


def test_renamed_task_is_refused(tmp_path: Path) -> None:
    """Several lengths of contexts are in the names of tasks, and one is not."""
    long = SETTINGS | {"context_tokens": [2000]}
    with _open(
        tmp_path, _changed(task_settings={"dense": {"gazetteer": long}})
    ) as directory:
        directory.mark("finished")
    config = SimpleNamespace(context_tokens=(2000,))
    other: Any = SimpleNamespace(name="gazetteer@2000", config=config)
    identity = _changed(tasks={"dense": {"gazetteer@2000": "k"}})
    opening = opened(tmp_path, identity, {}, 0, asked={"dense": [other]})
    assert "'gazetteer' there, 'gazetteer@2000' here" in refused(opening.__enter__)


def test_data_keep_their_digest(tmp_path: Path) -> None:
    with _open(tmp_path) as directory:
        directory.mark("finished")
    other = SimpleNamespace(**vars(TASK) | {"key_under": lambda settings: "k2"})
    identity = _changed(**_settings(items=4))
    opening = opened(tmp_path, identity, {}, 0, asked={"dense": [other]})
    told = refused(opening.__enter__)
    assert "dense, task gazetteer: its data have changed" in told


def _of(*names: str) -> dict[str, Any]:
    return {
        "models": dict.fromkeys(names, "9f3c"),
        "bases": dict.fromkeys(names),
        "checkpoints": [{"name": f"{name}-wanda", "n": name} for name in names],
        "tasks": {name: {"t": "k"} for name in names},
        "task_settings": {name: {"t": SETTINGS} for name in names},
    }


def test_absent_checkpoints_stay(tmp_path: Path) -> None:
    """With what run.json says of each. A control of the next call asks fewer: else
    the gate would not miss an absent checkpoint's unjudged items."""
    now = {"a": {"t": 100}, "a-control-order": {"t": 50}}
    for name, planned in (("b", {"b": {"t": 200}}), ("a", now)):
        with opened(tmp_path, _of(name), {}, 0) as directory:
            directory.mark("running", planned=planned, checkpoints=[])
            directory.mark("finished", checkpoints=[{"name": name}])
    document = _document(tmp_path)
    assert document["identity"] == _of("a", "b")
    assert document["planned"] == {**now, "b": {"t": 100}}
    assert [row["name"] for row in document["checkpoints"]] == ["a", "b"]


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


def test_damaged_verdicts_are_moved(tmp_path: Path) -> None:
    """The file of another matcher, and one that is whole, stay."""
    claim = Claim(question="q", answers=("a",), response="a")
    key: tuple[str | int, ...] = tuple(
        0 if pa.types.is_integer(VERDICTS.field(name).type) else name for name in KEY
    )

    def written(matcher: str, task: str) -> Path:
        verdicts = Verdicts(
            tmp_path, matcher, "digest", {("dense", task): {key: claim}}
        )
        answer(verdicts, lambda claim: 1.0)
        return tmp_path / "verdicts" / matcher / "dense" / f"{task}.parquet"

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
