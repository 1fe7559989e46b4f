"""How failures are told, and what a later call makes of them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from evaluator.core.errors import EngineError, InputError
from evaluator.core.records import Item, Status
from evaluator.store.records import RecordStore, failed_throughout, to_table
from evaluator.store.run_json import COLUMNS, Failure, failures_of
from launch.run.decide.failures import Setback
from launch.run.work.failure_log import FailureLog, told, try_again
from tests.support.stamps import stamped

NAN = "the model's log-probabilities are not numbers (NaN)"


def _item(number: int) -> Item:
    return Item(
        task="toy", language="english", item_id=f"i{number}", context="", question="q", answers=("a",), cluster=""
    )


TASK = SimpleNamespace(
    name="toy",
    questions=[SimpleNamespace(item=_item(number)) for number in range(4)],
    config=SimpleNamespace(after_base=True),
)
PREPARED: Any = SimpleNamespace(
    asked={"dense": (TASK,), "wanda": (TASK,)},
    jobs=[SimpleNamespace(name="dense", base=None), SimpleNamespace(name="wanda", base="dense")],
)


def _store(path: Path, checkpoint: str, *parts: dict[int, Status]) -> RecordStore:
    """With parts of items, by number, of a status."""
    store = RecordStore(path)
    for part in parts:
        found = []
        for number, status in part.items():
            found.append(stamped(_item(number), "greedy", checkpoint=checkpoint, status=status, text=NAN))
        store.append(checkpoint, "toy", f"{min(part):06d}-{len(part)}", to_table(found))
    return store


def _directory(ended: bool, *failures: Failure, mended: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(earlier_failures=failures, was_ended=ended, mended=mended, marked=[])


ITEM = Failure(checkpoint="dense", stage="item", task="toy", language="english", item="i2", reason="SIGSEGV")
UNMEASURED = Failure(checkpoint="dense", stage="evaluate", task="toy", reason=NAN)


def _names(store: RecordStore, checkpoint: str = "dense") -> list[str]:
    return [path.stem for path in store.parts(checkpoint, "toy")]


def test_a_run_that_had_ended_asks_a_deadly_item_again_and_whoever_read_its_answer(tmp_path: Path) -> None:
    store = _store(tmp_path, "dense", {0: "ok", 1: "ok"}, {2: "engine_error"}, {3: "ok"})
    _store(tmp_path, "wanda", {0: "ok", 1: "ok"}, {2: "excluded", 3: "ok"})
    assert try_again(PREPARED, _directory(True, ITEM), store) == []
    assert _names(store) == ["000000-2", "000003-1"]
    assert _names(store, "wanda") == ["000000-2"]


def test_a_run_that_was_interrupted_goes_on_without_it(tmp_path: Path) -> None:
    store = _store(tmp_path, "dense", {0: "ok", 1: "ok"}, {2: "engine_error"})
    assert try_again(PREPARED, _directory(False, ITEM), store) == [ITEM]
    assert _names(store) == ["000000-2", "000002-1"]
    gone = replace(ITEM, item="i3")  # found, and not written before the driver was killed
    assert try_again(PREPARED, _directory(False, gone), store) == []


def test_a_task_of_which_nothing_was_measured_is_asked_again_as_a_whole(tmp_path: Path) -> None:
    store = _store(tmp_path, "dense", {0: "engine_error", 1: "excluded"})
    assert try_again(PREPARED, _directory(False, UNMEASURED), store) == [UNMEASURED]
    assert try_again(PREPARED, _directory(True, UNMEASURED), store) == []
    assert _names(store) == []


def test_what_was_measured_is_never_removed(tmp_path: Path) -> None:
    store = _store(tmp_path, "dense", {0: "engine_error", 1: "ok"})
    failures = UNMEASURED, replace(UNMEASURED, stage="load", task=""), replace(UNMEASURED, task="..")
    assert try_again(PREPARED, _directory(True, *failures, replace(ITEM, checkpoint="../x")), store) == []
    assert _names(store) == ["000000-2"]


def test_of_a_checkpoint_with_other_weights_everything_goes(tmp_path: Path) -> None:
    store = _store(tmp_path, "dense", {0: "engine_error"})
    assert try_again(PREPARED, _directory(True, UNMEASURED, mended=("dense",)), store) == []
    assert _names(store) == []


def test_a_shard_fails_throughout_when_nothing_in_it_was_measured(tmp_path: Path) -> None:
    def said(*statuses: Status) -> str | None:
        store = _store(tmp_path / "-".join(statuses), "dense", dict(enumerate(statuses)))
        from pyarrow.parquet import read_table

        return failed_throughout(read_table(store.parts("dense", "toy")[0]))

    assert said("engine_error", "engine_error") == NAN
    assert said("excluded", "engine_error") == NAN
    assert said("engine_error", "ok") is None
    assert said("truncated", "engine_error") is None
    assert said("excluded", "excluded") is None


def _log(path: Path, *earlier: Failure) -> tuple[FailureLog, list[Any], list[str]]:
    marked: list[Any] = []
    warned: list[str] = []
    directory: Any = SimpleNamespace(path=path, mark=lambda state, **more: marked.append((state, more)))
    progress: Any = SimpleNamespace(warned=warned.append)
    return FailureLog(PREPARED, directory, progress, earlier), marked, warned


WORKERS: Any = [SimpleNamespace(number=0, nodes={"a", "b"}), SimpleNamespace(number=1, nodes={"c"})]


def test_what_is_given_up_is_told_and_kept_at_once(tmp_path: Path) -> None:
    log, marked, warned = _log(tmp_path, ITEM)
    file = tmp_path / "tables" / "failures.csv"
    assert pd.read_csv(file)["reason"].tolist() == ["SIGSEGV"]
    first = Setback(checkpoint="wanda", stage="load", reason="no", engines=(0, 1), attempts=3)
    second = Setback(checkpoint="dense", stage="item", task="toy", question=3, reason="SIGSEGV", engines=(1,))
    log.look((), WORKERS)
    assert marked == []
    log.look((first,), WORKERS)
    log.look((first, second), WORKERS)
    log.look((first, second), WORKERS)
    assert warned == [
        "wanda does not load, and was set aside: no",
        "dense: item 'i3' of toy is recorded as engine_error: SIGSEGV",
    ]
    assert [len(more["failures"]) for _, more in marked] == [2, 3]
    assert log.failures == tuple(failures_of({"failures": [asdict(each) for each in log.failures]}))
    assert log.failures[1].node == "a, b, c"
    assert log.failures[1].engine == "0, 1"
    assert (log.failures[2].item, log.failures[2].language) == ("i3", "english")
    table = pd.read_csv(file)
    assert table.columns.tolist() == list(COLUMNS)
    assert table["reason"].tolist() == ["SIGSEGV", "no", "SIGSEGV"]
    _log(tmp_path)
    assert not file.exists()


@pytest.mark.parametrize(("mendable", "kind"), [(True, InputError), (False, EngineError)])
def test_where_nothing_at_all_was_done_the_run_failed(tmp_path: Path, mendable: bool, kind: type[Exception]) -> None:
    log, _, _ = _log(tmp_path)
    log.need_something(RecordStore(tmp_path))
    log.look([Setback(checkpoint="dense", stage="load", reason="no kernel", mendable=mendable)], ())
    with pytest.raises(kind, match="nothing could be evaluated: dense does not load, and was set aside: no kernel"):
        log.need_something(RecordStore(tmp_path))
    log.need_something(_store(tmp_path, "wanda", {0: "ok"}))


def test_every_stage_has_its_words() -> None:
    assert told(UNMEASURED) == f"dense, toy: was set aside: {NAN}"
    assert told(replace(UNMEASURED, task="")) == f"dense: was set aside: {NAN}"
    assert told(replace(UNMEASURED, stage="prune", task="")) == f"dense could not be made: {NAN}"
