"""A run that grows call by call is the run that had everything from the start."""

import io
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evaluator.core.config import validated
from evaluator.metrics import TABLES
from evaluator.report import read_inputs
from evaluator.store.records import BASE_FAILED, RecordStore
from launch.run.directory.keys import Keys
from launch.run.directory.rundir import open_run
from launch.status import read_status
from launch.sweep.config import SweepConfig
from launch.sweep.preflight import prepare
from tests.support.fake import FakeLM
from tests.support.pretended_engine import FULL, SMALL, run_here, save_models, sweep
from tests.support.runs import folder_of, records, typed


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return save_models(folder)


def assert_same_tables(run: Path, whole: Path) -> None:
    found, expected = (read_inputs(each) for each in (run, whole))
    for name in ("accuracy", "fates", "seeds"):
        table = TABLES[name]
        same = table.fill(found).frame, table.fill(expected).frame
        pd.testing.assert_frame_equal(*same, obj=name)


def stated(run: Path) -> Any:
    """What tables read beside the records."""
    document = json.loads((run / "run.json").read_text())
    rows = document["checkpoints"]
    made = {row["name"]: (row["weights_digest"], row["sparsity"]) for row in rows}
    return made, document["planned"]


def assert_same(run: Path, whole: Path) -> None:
    pd.testing.assert_frame_equal(records(run), records(whole))
    assert stated(run) == stated(whole)


@pytest.fixture(scope="module")
def whole(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        run_here(patch, sweep(models, FULL), out)
    return out


@pytest.mark.parametrize("seed", range(2))
def test_any_growth_ends_the_same(models, whole, tmp_path, monkeypatch, seed) -> None:
    """Also if the driver is killed in between."""
    draw = random.Random(seed)
    size = dict.fromkeys(FULL, 1)
    for _ in range(3):
        killed = draw.choice([None, draw.randrange(6)])
        run_here(monkeypatch, sweep(models, size), tmp_path / "run", shards=killed)
        for name in draw.sample(sorted(FULL), 2):
            size[name] = draw.randint(size[name], FULL[name])
    run_here(monkeypatch, sweep(models, FULL), tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_prunings_and_controls_grow(models, tmp_path, monkeypatch) -> None:
    run, at_once = tmp_path / "run", tmp_path / "at-once"
    before = sweep(models, SMALL) | {"controls": "none"}
    pruned = {"prune": [{"method": "magnitude", "sparsity": 0.5}]}
    whole = sweep(models, SMALL | {"items": 2}) | pruned | {"controls": ["order"]}
    for document in (before, before | pruned, before | {"controls": ["order"]}, whole):
        run_here(monkeypatch, document, run)
    asked = [row[0] for row in run_here(monkeypatch, whole, at_once).asked]
    names = ["", "-magnitude-0.5", "~order"]
    assert sorted(asked) == [model + name for model in "ab" for name in names]
    assert_same(run, at_once)


def test_mended_checkpoint_joins_later(models, whole, tmp_path, monkeypatch) -> None:
    """It is set aside at the start, with its reason, and checked again by each call;
    what is measured meanwhile stays, also if it is spoiled again."""
    run, copies = tmp_path / "run", tmp_path / "models"
    shutil.copytree(models, copies)
    file = copies / "b" / "config.json"
    sound = file.read_text()
    spoiled = json.dumps(json.loads(sound) | {"max_position_embeddings": 20})
    document = sweep(copies, FULL)

    def failures(text: str) -> list[tuple[str, str]]:
        file.write_text(text)
        engine = run_here(monkeypatch, document, run)
        rows = json.loads((run / "run.json").read_text())["failures"]
        assert {row[0] for row in engine.asked} <= {"a", "b"} - {
            row["checkpoint"] for row in rows
        }
        return [(row["checkpoint"], row["stage"]) for row in rows]

    aside = [("b", "load")]
    assert failures(spoiled) == failures(spoiled) == aside
    assert set(records(run)["checkpoint"]) == {"a"}
    assert failures(sound) == []
    assert_same(run, whole)
    assert failures(spoiled) == aside
    pd.testing.assert_frame_equal(records(run), records(whole))
    assert stated(run)[1] == stated(whole)[1]
    assert read_status(run).unused_bytes == 0  # the sweep names it


def test_fewer_items_delete_nothing(models, tmp_path, monkeypatch) -> None:
    """The tables use the first ones. Growing back evaluates nothing."""
    run, few = tmp_path / "run", tmp_path / "few"
    more = SMALL | {"items": 3}
    run_here(monkeypatch, sweep(models, more), run)
    before = records(run)
    assert run_here(monkeypatch, sweep(models, SMALL), run).asked == []
    run_here(monkeypatch, sweep(models, SMALL), few)
    assert_same_tables(run, few)
    assert run_here(monkeypatch, sweep(models, more), run).asked == []
    pd.testing.assert_frame_equal(records(run), before)


def test_only_what_lacks_is_asked(models, tmp_path, monkeypatch) -> None:
    run_here(monkeypatch, sweep(models, SMALL), tmp_path)
    grown = SMALL | {"items": 2, "probes": 3}
    asked = run_here(monkeypatch, sweep(models, grown), tmp_path).asked
    assert asked == [
        (name, "gazetteer", 1, probes)
        for name in "ab"
        for probes in (("sample",), ("choice", "greedy", "sample"))
    ]


def test_new_seeds_alone_are_drawn(models, tmp_path, monkeypatch) -> None:
    """Tables use the seeds of the last call. Leaving one out deletes nothing."""
    size, run = SMALL | {"probes": 3}, tmp_path / "run"

    def call(out: Path, seeds: list[int] | None) -> list[tuple[object, ...]]:
        return run_here(monkeypatch, sweep(models, size, seeds=seeds), out).asked

    call(run, None)
    drawn = [(name, "gazetteer", 1, ("sample",)) for name in "ab"]
    assert call(run, [0, 2, 1]) == drawn
    call(tmp_path / "three", [0, 1, 2])
    assert_same(run, tmp_path / "three")
    before = records(run)
    assert call(run, None) == call(run, [0, 2]) == []
    call(tmp_path / "two", [0, 2])
    assert_same_tables(run, tmp_path / "two")
    pd.testing.assert_frame_equal(records(run), before)
    assert call(run, [0, 3]) == drawn


def test_probe_and_seed_come_together(models, tmp_path, monkeypatch) -> None:
    """An item then lacks one under some seeds and the other under all."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    run_here(monkeypatch, sweep(models, SMALL | {"probes": 3}), run)
    grown = sweep(models, SMALL | {"probes": 4}, seeds=[0, 1])
    for out in (run, whole):
        run_here(monkeypatch, grown, out)
    assert_same(run, whole)


def left_of(document: dict[str, Any], run: Path) -> Any:
    """What a dry run finds."""
    prepared = prepare(validated(SweepConfig, document, "s.yaml"), run)
    return Keys(prepared).left(open_run(prepared, run).cells)


def items_left(left: Any) -> dict[Any, int]:
    return {cell: sum(count for _, count in parts) for cell, parts in left.items()}


def items_by_cell(asked: list[tuple[str, str, int, Any]]) -> dict[Any, int]:
    found = Counter[tuple[str, str]]()
    for name, task, count, _ in asked:
        found[name, task] += count
    return {**found}


def test_dry_run_counts_what_is_left(models, tmp_path, monkeypatch) -> None:
    """Also after a call that was killed."""
    small, grown = (sweep(models, SMALL | {"items": n}) for n in (4, 6))
    for document, shards in ((small, 1), (small, None), (grown, None)):
        left = items_left(left_of(document, tmp_path))
        engine = run_here(monkeypatch, document, tmp_path, shards=shards)
        asked = items_by_cell(engine.asked)
        assert asked == {**asked, **left}
    assert set(left.values()) == {2}


def test_dry_run_counts_a_missing_seed_alone(models, tmp_path, monkeypatch) -> None:
    size = SMALL | {"items": 3, "probes": 3}
    run_here(monkeypatch, sweep(models, size), tmp_path)
    left = left_of(sweep(models, size, seeds=[0, 7]), tmp_path)
    # as the run asks it: `choice` goes along with what is blind
    lacks = {"formats": ("open",), "seeds": (7,), "probes": ("sample", "choice")}
    assert left == {(name, "gazetteer"): [(lacks, 3)] for name in "ab"}


def test_a_short_cell_that_is_left_out_is_told(models, tmp_path, monkeypatch) -> None:
    size = SMALL | {"items": 4}
    run_here(monkeypatch, sweep(models, size), tmp_path, shards=3)
    run_here(monkeypatch, sweep(models, size | {"models": 1}), tmp_path)
    (note,) = read_inputs(tmp_path).notes
    assert note.endswith(
        "b on gazetteer has records of 2 of 4 items: the last sweep does not name it"
    )


def test_changed_setting_evaluates_again(models, tmp_path, monkeypatch) -> None:
    """It is told, the earlier records stay, and changing back evaluates nothing."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    one = SMALL | {"models": 1}
    run_here(monkeypatch, sweep(models, one), run)
    before = records(run)
    engine = run_here(monkeypatch, sweep(models, one, seed=3), run)
    assert [row[0] for row in engine.asked] == ["a"]
    told = "task.settings.seed is 0 there, 3 here: evaluated again; the earlier records"
    assert f"a, task gazetteer: {told} stay" in engine.told
    run_here(monkeypatch, sweep(models, one, seed=3), whole)
    assert_same(run, whole)
    engine = run_here(monkeypatch, sweep(models, one), run)
    assert engine.asked == []
    told = "task.settings.seed is 3 there, 0 here: the run has records of this too"
    assert any(told in each for each in engine.told)
    pd.testing.assert_frame_equal(records(run), before)


def test_left_out_checkpoint_keeps_its_rows(models, tmp_path, monkeypatch) -> None:
    """As long as its task has the same settings."""
    run, both, one = tmp_path, sweep(models, SMALL), SMALL | {"models": 1}
    run_here(monkeypatch, both, run)
    before = records(run)
    run_here(monkeypatch, sweep(models, one), run)
    pd.testing.assert_frame_equal(records(run), before)
    run_here(monkeypatch, sweep(models, one, seed=3), run)
    assert set(records(run)["checkpoint"]) == {"a"}


def test_other_names_evaluate_nothing(models, tmp_path, monkeypatch) -> None:
    """Of checkpoints, their base and tasks: tables know no former name."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    size = SMALL | {"probes": 7}
    run_here(monkeypatch, sweep(models, size), run)
    renamed = sweep(models, size) | {"base": "second"}
    paths = {"first": str(models / "b"), "second": str(models / "a")}
    renamed["models"], renamed["tasks"][0]["name"] = paths, "other"
    assert run_here(monkeypatch, renamed, run).asked == []
    run_here(monkeypatch, renamed, whole)
    assert_same(run, whole)
    assert_same_tables(run, whole)


def test_equal_content_is_asked_once(models, tmp_path, monkeypatch) -> None:
    """And shown under each name, also where it is a base, and in two tasks."""
    run, once = tmp_path / "run", tmp_path / "once"
    size = SMALL | {"probes": 7, "models": 1}
    shutil.copytree(models / "a", tmp_path / "copy")
    document = sweep(models, size)
    document["models"]["copy"] = str(tmp_path / "copy")
    document["models"]["b"] = str(models / "b")
    document["tasks"] += [document["tasks"][0] | {"name": "same"}]
    asked = run_here(monkeypatch, document, run).asked
    assert [row[:2] for row in asked] == [(name, "gazetteer") for name in "ab"]
    run_here(monkeypatch, document | {"models": {"a": str(models / "a")}}, once)
    found, alone = records(run), records(once)
    for name in ("a", "copy"):
        rows = found[found["checkpoint"] == name].reset_index(drop=True)
        expected = alone.assign(checkpoint=name)
        pd.testing.assert_frame_equal(
            rows.drop(columns="base"), expected.drop(columns="base")
        )
        assert set(rows["base"].dropna()) == ({"a"} - {name})


def test_what_the_engine_failed_on_is_asked_again(
    models, tmp_path, monkeypatch
) -> None:
    """And what read the base's answer. Each record counts once; a second call asks
    nothing."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    document = sweep(models, SMALL | {"items": 2, "probes": 6})
    for out in (run, whole):
        run_here(monkeypatch, document, out)
    for name, failed in (
        ("a", {"status": "engine_error", "text": "NaN"}),
        ("b", {"status": "excluded", "text": BASE_FAILED}),
    ):
        (part,) = folder_of(run, name).glob("*.parquet")
        table = pq.read_table(part)
        rows = table.to_pylist()
        for row in rows:
            probe = "greedy" if name == "a" else "aligned_rank"
            if (row["item_id"], row["probe"]) == (rows[0]["item_id"], probe):
                row |= failed
        part.unlink()
        part_table = pa.Table.from_pylist(rows, table.schema)
        RecordStore(run).append(part.parent.name, part_table)
    asked = run_here(monkeypatch, document, run).asked
    assert asked == [
        ("a", "gazetteer", 1, ("greedy",)),
        ("b", "gazetteer", 1, ("aligned_rank",)),
    ]
    assert_same(run, whole)
    assert_same_tables(run, whole)
    assert run_here(monkeypatch, document, run).asked == []


def test_clean_removes_what_no_cell_uses(models, tmp_path, monkeypatch, capsys) -> None:
    """After a question. The rest stays, and growing back evaluates again."""
    run, alone, one = tmp_path / "run", tmp_path / "alone", SMALL | {"models": 1}
    both = sweep(models, SMALL)
    run_here(monkeypatch, sweep(models, SMALL, seed=5), run)
    run_here(monkeypatch, both, run)
    for out in (run, alone):
        run_here(monkeypatch, sweep(models, one), out)
    unused = read_status(run).unused_bytes
    assert unused > 0
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody answers
    assert typed(monkeypatch, "clean", run) == 2
    assert "--yes" in capsys.readouterr().err
    monkeypatch.setattr("typer.confirm", lambda question: False)
    assert typed(monkeypatch, "clean", run) == 0
    assert "nothing was removed" in capsys.readouterr().out
    assert read_status(run).unused_bytes == unused
    assert typed(monkeypatch, "clean", run, "--yes") == 0
    assert "b gazetteer" in capsys.readouterr().out
    assert read_status(run).unused_bytes == 0
    assert_same(run, alone)
    made = run / "checkpoints" / "old"
    made.mkdir(parents=True)
    (made / "model.safetensors").write_bytes(bytes(2**20))
    assert typed(monkeypatch, "clean", run) == 0
    told = capsys.readouterr().out
    assert f"{made}: 1.0 MiB, outside the sweep: stays" in told
    assert "no record is unused" in told
    asked = run_here(monkeypatch, both, run).asked
    assert [row[0] for row in asked] == ["b"]


@pytest.fixture
def ends_soon(monkeypatch) -> None:
    """An answer may end before its limit."""
    own = FakeLM.logprobs

    def logprobs(model: FakeLM, prefix: tuple[int, ...]) -> Any:
        raised = own(model, prefix)
        raised[[*model.eos_ids]] += 5
        return raised - np.logaddexp.reduce(raised)

    monkeypatch.setattr(FakeLM, "logprobs", logprobs)


@pytest.mark.usefixtures("ends_soon")
def test_dry_run_counts_the_cut_answers(models, tmp_path, monkeypatch) -> None:
    size = SMALL | {"items": 12}
    run_here(monkeypatch, sweep(models, size), tmp_path)
    again = sweep(models, size, recheck_cut=True)
    left = items_left(left_of(again, tmp_path))
    engine = run_here(monkeypatch, again, tmp_path)
    assert left == items_by_cell(engine.asked)
    told = "recheck_cut is null there, true here: only cut answers are posed again"
    assert sum(told in each for each in engine.told) == len(left)
    assert all(0 < count < 12 for count in left.values())


@pytest.mark.usefixtures("ends_soon")
def test_cut_answers_alone_are_posed_again(models, tmp_path, monkeypatch) -> None:
    """Also of a run that was made before, and one that is killed meanwhile."""
    size = {"models": 2, "languages": 2, "items": 12, "probes": 6, "tasks": 1}
    plain, again = sweep(models, size), sweep(models, size, recheck_cut=True)
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    run_here(monkeypatch, plain, run)
    before = records(run)
    first = run_here(monkeypatch, again, run, shards=2).asked
    left = items_left(left_of(again, run))
    second = run_here(monkeypatch, again, run).asked
    counted = items_by_cell(second)
    assert counted == {**counted, **left}
    asked = first + second
    greedy = before[before["probe"] == "greedy"]
    lengths = greedy["token_ids"].map(len)
    last = greedy["token_ids"].map(lambda ids: ids[-1])
    cut = int(((lengths == 2) & (last != 0)).sum())
    full = int((lengths == 2).sum())
    assert 0 < cut < full < len(greedy)
    # one that ends exactly at the limit is asked too, and answered as before
    assert sum(row[2] for row in asked if "greedy" in row[3]) == full
    assert all("choice" not in row[3] for row in asked)
    run_here(monkeypatch, again, fresh)
    found = records(run)
    pd.testing.assert_frame_equal(found, records(fresh))
    found = found[found["probe"] == "greedy"]
    longer = found["token_ids"].map(len) > 2
    assert longer.sum() == cut
    assert found["token_ids"].map(len).max() <= 8
    assert run_here(monkeypatch, again, run).asked == []
    assert run_here(monkeypatch, plain, run).asked == []
    pd.testing.assert_frame_equal(records(run), before)
