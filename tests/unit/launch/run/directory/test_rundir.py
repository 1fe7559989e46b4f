"""Whom a run directory belongs to, what is said when it is somebody else's, and what
it keeps of earlier calls."""

import json
import shutil
from collections import namedtuple
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from evaluator.core.records import EngineStats, Origin
from evaluator.judging.matcher import Claim
from evaluator.store.cells import Cells
from evaluator.store.run_json import Failure, Served
from evaluator.store.schema import KEY, VERDICTS
from evaluator.store.verdicts import Verdicts
from launch.run.directory.rundir import RunDirectory, set_verdicts_aside, with_cells
from launch.run.events import Counted, Evaluated, Loaded, Started
from launch.run.state import RunState, advance
from tests.support.judging import answer
from tests.support.run_directories import opened
from tests.support.sweeps import refused

IDENTITY: dict[str, Any] = {
    "bases": {"dense": None},
    "tasks": {"dense": {"gazetteer": "k1"}},
    "task_settings": {"dense": {"gazetteer": {"items": 2}}},
    "engine": {"kind": "torch"},
}


def _document(path: Path) -> dict[str, Any]:
    return json.loads((path / "run.json").read_text())


def _open(
    path: Path, identity: Any = IDENTITY, needed: int = 0
) -> AbstractContextManager[RunDirectory]:
    return opened(path, identity, {"seed": 0}, needed)


def test_reopened_directory_keeps_earlier_rows(tmp_path: Path) -> None:
    """Rows of this call's engines follow them, and no later mark forgets any."""
    path = tmp_path / "a" / "run"
    with _open(path) as directory:
        directory.write(RunState())
    document = _document(path)
    assert (document["state"], document["identity"]) == ("running", IDENTITY)
    assert {"schema_version", "digest", "config", "provenance"} <= document.keys()
    state = RunState()
    for number in (1, 2):
        served = Served(
            engine=number, checkpoint="a", device="", abilities={"top": number}
        )
        of_a = {"engine": number, "checkpoint": "a"}
        more = {"task": "t", "items": 1, "seconds": 1.0, "stats": EngineStats()}
        for event in (
            Started(),
            Loaded(**of_a, served=served),
            Counted(**of_a, **more),
            Evaluated("finished"),
        ):
            state = advance(state, event, 0.0)
        with _open(path) as directory:
            directory.on(Evaluated("finished"), state)
        rows = _document(path)["engine_stats"]
        assert [row["engine"] for row in rows] == [1, 2][:number]
    abilities = [{"checkpoint": "a", "abilities": {"top": 2}}]
    assert _document(path)["engines"] == abilities
    assert _document(path)["state"] == "finished"


@pytest.mark.parametrize("changed", [False, True])
def test_changed_policy_of_the_sweep_is_newer(tmp_path: Path, changed) -> None:
    """Than what the last `gate` used and said."""
    with opened(tmp_path, IDENTITY, {"gate": {"max_drop": 2}}, 0) as directory:
        directory.write(RunState())
    policies = [tmp_path / name for name in ("gate.yaml", "gate.json")]
    for path in policies:
        path.touch()
    with opened(tmp_path, IDENTITY, {"gate": {"max_drop": 2 - changed}}, 0):
        pass
    assert [path.exists() for path in policies] == [not changed] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"digest": "d", "schema_version": 99}', "schema_version: 99 was written"),
        (
            '{"digest": "d", "schema_version": 1}',
            "schema_version: 1 is the layout of an earlier Resurface: `resurface report`"
            " reads it; evaluate into a new --out",
        ),
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


FAILED = {"checkpoint": "dense", "stage": "load", "reason": "no"}


def test_failures_are_a_table(tmp_path: Path) -> None:
    """It is there while there are failures, also if no report follows."""
    table = tmp_path / "tables" / "failures.csv"
    with _open(tmp_path) as directory:
        directory.write(RunState(failures=(Failure(**FAILED),)))
        assert table.read_text().splitlines()[1] == "dense,load,,,,,,1,no"
        directory.write(RunState())
        assert not table.exists()


def _of(*names: str) -> dict[str, Any]:
    return {
        "bases": dict.fromkeys(names),
        "tasks": {name: {"t": "k"} for name in names},
        "task_settings": {name: {"t": {"items": 2}} for name in names},
        "engine": {"kind": "torch"},
    }


def test_absent_cells_stay(tmp_path: Path) -> None:
    """With what run.json says of each. A control of the next call asks fewer: else
    the gate would not miss an absent checkpoint's unjudged items."""
    now = {"a": {"t": 100}, "a-control-order": {"t": 50}}
    for name, planned in (("b", {"b": {"t": 200}}), ("a", now)):
        with opened(tmp_path, _of(name), {}, 0) as directory:
            directory.cells.begin({(name, "t")}, {})
            origin = dict.fromkeys(Origin.__struct_fields__) | {"checkpoint": name}
            directory.cells.put(Origin(**origin), "t", f"key of {name}", {})
            directory.cells.save()
            directory.stated |= {"planned": planned}
            directory.write(RunState())
            directory.stated |= {"checkpoints": [{"name": name}]}
            directory.write(RunState())
    document = _document(tmp_path)
    assert document["identity"] == _of("a", "b")
    assert document["planned"] == {**now, "b": {"t": 100}}
    assert [row["name"] for row in document["checkpoints"]] == ["a", "b"]
    assert Cells(tmp_path).left_out == {("b", "t")}


@pytest.mark.parametrize(
    ("now", "kept", "order"),
    [
        ("ad", "bc", "abcd"),  # b and c were set aside
        ("da", "bc", "dabc"),  # the sweep has another order
        ("bc", "a", "abc"),
        ("ade", "b", "abde"),  # c is dropped
        ("xy", "", "xy"),
    ],
)
def test_absent_cells_keep_their_place(now, kept, order) -> None:
    planned = {name: {"t": 1} for name in "abcd"}
    document = {"planned": {name: {"t": 1} for name in now}, "identity": {}}
    cells = {(name, "t") for name in kept}
    found = with_cells(document, {"planned": planned}, cells)
    assert "".join(found["planned"]) == order


def test_unreadable_keys_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "records" / "keys.json"
    file.parent.mkdir()
    for content in ("{", '{"keys": {}, "cells": [{"task": "t"}]}'):
        file.write_text(content)
        told = refused(opened(tmp_path, IDENTITY, {}, 0).__enter__)
        assert told.startswith(f"{file}: no list of keys (")


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
