"""What a later call makes of the failures of an earlier one."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator.core.records import Status
from evaluator.store.records import RecordStore, to_table
from evaluator.store.run_json import Failure
from launch.run.directory.rundir import try_again
from tests.support.stamps import make_item, stamped

NAN = "the model's log-probabilities are not numbers (NaN)"


QUESTIONS = [
    SimpleNamespace(item=replace(make_item(number), task="toy")) for number in range(4)
]
TASK = SimpleNamespace(
    name="toy", questions=QUESTIONS, config=SimpleNamespace(after_base=True)
)
PREPARED: Any = SimpleNamespace(
    asked={"dense": (TASK,), "wanda": (TASK,)},
    jobs=[
        SimpleNamespace(name="dense", base=None),
        SimpleNamespace(name="wanda", base="dense"),
    ],
)


def _store(path: Path, checkpoint: str, *parts: dict[int, Status]) -> RecordStore:
    store = RecordStore(path)
    for part in parts:
        found = [
            stamped(
                QUESTIONS[number].item,
                "greedy",
                checkpoint=checkpoint,
                status=status,
                text=NAN,
            )
            for number, status in part.items()
        ]
        store.append(checkpoint, "toy", f"{min(part):06d}-{len(part)}", to_table(found))
    return store


def _directory(ended: bool, *failures: Failure, mended: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        earlier_failures=failures, was_ended=ended, mended=mended, marked=[]
    )


ITEM = Failure(
    checkpoint="dense",
    stage="item",
    task="toy",
    language="english",
    item="i2",
    reason="SIGSEGV",
)
UNMEASURED = Failure(checkpoint="dense", stage="evaluate", task="toy", reason=NAN)


def _names(store: RecordStore, checkpoint: str = "dense") -> list[str]:
    return [path.stem for path in store.parts(checkpoint, "toy")]


def test_ended_run_repeats_deadly_item(tmp_path: Path) -> None:
    """And the items of other checkpoints whose probes read its answer."""
    store = _store(
        tmp_path, "dense", {0: "ok", 1: "ok"}, {2: "engine_error"}, {3: "ok"}
    )
    _store(tmp_path, "wanda", {0: "ok", 1: "ok"}, {2: "excluded", 3: "ok"})
    assert try_again(PREPARED, _directory(True, ITEM), store) == []
    assert (_names(store), _names(store, "wanda")) == (
        ["000000-2", "000003-1"],
        ["000000-2"],
    )


MEASURED = (
    UNMEASURED,
    replace(UNMEASURED, stage="load", task=""),
    replace(UNMEASURED, task=".."),
)


@pytest.mark.parametrize(
    ("parts", "directory", "kept", "left"),
    [
        # it was interrupted
        ([{0: "ok"}, {2: "engine_error"}], _directory(False, ITEM), [ITEM], 2),
        # found, and not written before the driver was killed
        ([{0: "ok"}], _directory(False, ITEM), [], 1),
        (
            [{0: "engine_error", 1: "excluded"}],
            _directory(False, UNMEASURED),
            [UNMEASURED],
            1,
        ),
        ([{0: "engine_error", 1: "excluded"}], _directory(True, UNMEASURED), [], 0),
        (
            [{0: "engine_error", 1: "ok"}],
            _directory(True, *MEASURED, replace(ITEM, checkpoint="../x")),
            [],
            1,
        ),
        # it has other weights
        ([{0: "ok"}], _directory(False, UNMEASURED, mended=("dense",)), [], 0),
    ],
)
def test_later_call_repeats_failures(
    tmp_path: Path, parts, directory, kept, left
) -> None:
    store = _store(tmp_path, "dense", *parts)
    assert try_again(PREPARED, directory, store) == kept
    assert len(_names(store)) == left
