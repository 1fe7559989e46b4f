"""Records of another run are those of this one, or are named and not taken."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.core.config import validated
from evaluator.store.records import RecordStore
from launch.commands.call import _left, need_reusable
from launch.run.directory.keys import Keys
from launch.run.directory.rundir import open_run
from launch.sweep.config import SweepConfig
from launch.sweep.preflight import prepare
from tests.support.pretended_engine import SMALL, run_here, save_models, sweep
from tests.support.runs import records
from tests.support.sweeps import refused

ONE = SMALL | {"models": 1}
GROWN = SMALL | {"items": 3, "probes": 7}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def made(models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("made") / "run"
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, sweep(models, ONE | {"items": 2}), run)
    return run


@pytest.fixture
def other(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "other")


def test_equal_records_are_taken(models, other, tmp_path, monkeypatch) -> None:
    """A second call takes nothing more; the origin is in run.json."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    for _ in range(2):
        engine = run_here(monkeypatch, sweep(models, GROWN), run, reuse=[other])
        again = [row for row in engine.asked if row[0] == "a" and row[2] == 2]
        assert all({"greedy", "choice"}.isdisjoint(row[3]) for row in again[:1])
    assert engine.asked == []
    run_here(monkeypatch, sweep(models, GROWN), whole)
    pd.testing.assert_frame_equal(records(run), records(whole))
    (row,) = json.loads((run / "run.json").read_text())["reused"]
    assert row == {
        "run": str(other),
        "checkpoint": "a",
        "task": "gazetteer",
        "items": 2,
    }


def test_dry_run_counts_what_is_not_taken(models, other, tmp_path, monkeypatch) -> None:
    run, document = tmp_path / "run", sweep(models, ONE | {"items": 5})
    prepared = prepare(validated(SweepConfig, document, "s.yaml"), run)
    cells, keys = open_run(prepared, run).cells, Keys(prepared)
    assert keys.left(cells) == {}
    left = keys.left(cells, [RecordStore(other)])
    assert [count for _, count in left["a", "gazetteer"]] == [3]
    engine = run_here(monkeypatch, document, run, reuse=[other])
    assert sum(row[2] for row in engine.asked) == 3


def test_dry_run_names_what_reuse_cannot_count(models, other, tmp_path) -> None:
    pruning = {"method": "magnitude", "sparsity": [0.5]}
    document = sweep(models, ONE) | {"prune": [pruning]}
    prepared = prepare(validated(SweepConfig, document, "s.yaml"), tmp_path / "run")
    told = "counted whole, as only a start finds what --reuse has of them:"
    for reuse in ([], [other]):
        left, notes = _left(prepared, tmp_path / "run", reuse)
        assert notes == [f"{told} magnitude-0.5"] * len(reuse)
        assert left.keys() == {("a", "gazetteer")} or not reuse


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"seed": 3}, "task.settings.seed is 0 there, 3 here"),
        ({"max_new_tokens": 3}, "task.settings.max_new_tokens is 2 there, 3 here"),
    ],
)
def test_what_differs_is_named(models, other, tmp_path, monkeypatch, settings, told):
    document = sweep(models, ONE, **settings)
    engine = run_here(monkeypatch, document, tmp_path / "run", reuse=[other])
    assert [row[0] for row in engine.asked] == ["a"]
    assert f"{other}: a, task gazetteer: not reused: {told}" in engine.told


def test_names_do_not_matter(models, other, tmp_path, monkeypatch) -> None:
    renamed = {"base": "first", "models": {"first": str(models / "a")}}
    document = sweep(models, ONE) | renamed
    document["tasks"][0]["name"] = "other"
    run = tmp_path / "run"
    assert run_here(monkeypatch, document, run, reuse=[other]).asked == []
    assert set(records(run)["checkpoint"]) == {"first"}
    assert set(records(run)["task"]) == {"other"}


def test_failed_probe_is_asked_again(models, other, tmp_path, monkeypatch) -> None:
    """With all that its item had there; the others in its part are taken."""
    part = next((other / "records").glob("*/*.parquet"))
    table = pq.read_table(part)
    rows = table.to_pylist()
    for row in rows:
        if (row["item_id"], row["probe"]) == (rows[0]["item_id"], "choice"):
            row["status"] = "engine_error"
    part.unlink()
    RecordStore(other).append(
        part.parent.name, pa.Table.from_pylist(rows, table.schema)
    )
    run, whole = tmp_path / "run", tmp_path / "whole"
    size = ONE | {"items": 2}
    engine = run_here(monkeypatch, sweep(models, size), run, reuse=[other])
    assert engine.asked == [("a", "gazetteer", 1, ("choice", "greedy"))]
    run_here(monkeypatch, sweep(models, size), whole)
    pd.testing.assert_frame_equal(records(run), records(whole))


def test_unfit_runs_are_refused(other, tmp_path) -> None:
    assert "not a run directory" in refused(need_reusable, [tmp_path], None)
    assert "is the run itself" in refused(need_reusable, [other], other)
    file = other / "run.json"
    old = file.read_text().replace('"schema_version": 2', '"schema_version": 1')
    file.write_text(old)
    assert "the layout of an earlier Resurface" in refused(need_reusable, [other], None)
