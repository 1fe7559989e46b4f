"""Records of another run are those of this one, or are named and not taken."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from launch.commands.call import need_reusable
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
    assert row["run"] == str(other)
    assert (row["from"], row["checkpoint"], row["items"]) == ("a", "a", 2)


def _with_run(other: Path, change: Any) -> None:
    file = other / "run.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda run: run["identity"]["task_settings"]["a"]["gazetteer"].update(
                seed=3
            ),
            "a, task gazetteer: not reused: seed is 3 there, 0 here",
        ),
        (
            lambda run: run["identity"]["tasks"]["a"].update(gazetteer="k"),
            "a, task gazetteer: not reused: its data differ",
        ),
        (
            lambda run: run["provenance"]["versions"].update(torch="1"),
            'not reused: versions.torch is "1" there',
        ),
        (
            lambda run: run["provenance"].update(processor="other"),
            'not reused: processor is "other" there',
        ),
        (
            lambda run: run["identity"]["engine"].update(dtype="float16"),
            "not reused: engine.dtype is",
        ),
        (lambda run: run["checkpoints"][0].update(weights_digest="0"), None),
    ],
)
def test_other_records_are_named(
    models, other, tmp_path, monkeypatch, change, told
) -> None:
    _with_run(other, change)
    engine = run_here(monkeypatch, sweep(models, ONE), tmp_path / "run", reuse=[other])
    assert [row[0] for row in engine.asked] == ["a"]
    assert told is None or any(told in text for text in engine.told)


def test_other_prompts_are_not_taken(models, other, tmp_path, monkeypatch) -> None:
    """Nor what an engine failed on."""
    for part in (other / "records").glob("*/*/*.parquet"):
        table = pq.read_table(part)
        place = table.schema.get_field_index("prompt_digest")
        column = pa.array(["0"] * table.num_rows)
        pq.write_table(table.set_column(place, table.schema[place], column), part)
    engine = run_here(monkeypatch, sweep(models, ONE), tmp_path / "run", reuse=[other])
    assert [row[0] for row in engine.asked] == ["a"]


def test_failed_probe_is_asked_again(models, other, tmp_path, monkeypatch) -> None:
    """Of this item alone; the others in its part are taken."""
    part = next((other / "records").glob("*/*/*.parquet"))
    table = pq.read_table(part)
    rows = table.to_pylist()
    for row in rows:
        if (row["item_id"], row["probe"]) == (rows[0]["item_id"], "choice"):
            row["status"] = "engine_error"
    pq.write_table(pa.Table.from_pylist(rows, table.schema), part)
    run, whole = tmp_path / "run", tmp_path / "whole"
    size = ONE | {"items": 2}
    engine = run_here(monkeypatch, sweep(models, size), run, reuse=[other])
    assert ("a", "gazetteer", 1, ("choice",)) in engine.asked
    run_here(monkeypatch, sweep(models, size), whole)
    pd.testing.assert_frame_equal(records(run), records(whole))


def test_unfit_runs_are_refused(other, tmp_path, monkeypatch) -> None:
    assert "not a run directory" in refused(need_reusable, [tmp_path], None)
    assert "is the run itself" in refused(need_reusable, [other], other)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "RAY_ADDRESS names a cluster" in refused(need_reusable, [other], None)
