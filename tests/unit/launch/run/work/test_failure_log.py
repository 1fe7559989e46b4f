"""How failures are told, their reasons in logs, and what a later call makes of them."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from evaluator.core.errors import EngineError, InputError
from evaluator.core.liveness import Hung
from evaluator.core.records import Status
from evaluator.store.records import RecordStore, failed_throughout, to_table
from evaluator.store.run_json import COLUMNS, Failure, failures_of
from launch.run.decide.failures import Setback
from launch.run.work import failure_log
from launch.run.work.failure_log import (
    FailureLog,
    cut,
    last_error,
    last_words,
    size,
    tail,
    try_again,
)
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


def test_a_run_that_had_ended_asks_a_deadly_item_again_and_whoever_read_its_answer(
    tmp_path: Path,
) -> None:
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
def test_what_a_later_call_asks_again(
    tmp_path: Path, parts, directory, kept, left
) -> None:
    store = _store(tmp_path, "dense", *parts)
    assert try_again(PREPARED, directory, store) == kept
    assert len(_names(store)) == left


def test_a_shard_fails_throughout_when_nothing_in_it_was_measured(
    tmp_path: Path,
) -> None:
    def said(*statuses: Status) -> str | None:
        store = _store(
            tmp_path / "-".join(statuses), "dense", dict(enumerate(statuses))
        )
        return failed_throughout(pq.read_table(store.parts("dense", "toy")[0]))

    assert said("engine_error", "engine_error") == NAN
    assert said("excluded", "engine_error") == NAN
    assert said("engine_error", "ok") is None
    assert said("truncated", "engine_error") is None
    assert said("excluded", "excluded") is None


def _log(path: Path, *earlier: Failure) -> tuple[FailureLog, list[Any], list[str]]:
    marked, warned = [], []
    directory = SimpleNamespace(
        path=path, mark=lambda state, **more: marked.append(more)
    )
    return (
        FailureLog(
            PREPARED, directory, lambda event: warned.append(event.text), earlier
        ),
        marked,
        warned,
    )


WORKERS: Any = [
    SimpleNamespace(number=0, nodes={"a", "b"}),
    SimpleNamespace(number=1, nodes={"c"}),
]


def test_what_is_given_up_is_told_and_kept_at_once(tmp_path: Path) -> None:
    log, marked, warned = _log(tmp_path, ITEM)
    file = tmp_path / "tables" / "failures.csv"
    assert pd.read_csv(file)["reason"].tolist() == ["SIGSEGV"]
    first = Setback(
        checkpoint="wanda", stage="load", reason="no", engines=(0, 1), attempts=3
    )
    second = Setback(
        checkpoint="dense",
        stage="item",
        task="toy",
        question=3,
        reason="SIGSEGV",
        engines=(1,),
    )
    log.look((), WORKERS)
    assert marked == []
    log.look((first,), WORKERS)
    log.look((first, second), WORKERS)
    log.look((first, second), WORKERS)
    assert warned == [
        "wanda does not load, and was set aside: no",
        "dense: item 'i3' of toy is recorded as engine_error: SIGSEGV",
    ]
    assert [len(more["failures"]) for more in marked] == [2, 3]
    assert log.failures == tuple(
        failures_of({"failures": [asdict(each) for each in log.failures]})
    )
    assert (log.failures[1].node, log.failures[1].engine) == ("a, b, c", "0, 1")
    assert (log.failures[2].item, log.failures[2].language) == ("i3", "english")
    table = pd.read_csv(file)
    assert table.columns.tolist() == list(COLUMNS)
    assert table["reason"].tolist() == ["SIGSEGV", "no", "SIGSEGV"]
    _log(tmp_path)
    assert not file.exists()


@pytest.mark.parametrize(
    ("mendable", "kind"), [(True, InputError), (False, EngineError)]
)
def test_where_nothing_at_all_was_done_the_run_failed(
    tmp_path: Path, mendable: bool, kind: type[Exception]
) -> None:
    log, _, _ = _log(tmp_path)
    log.need_something(RecordStore(tmp_path))
    log.look(
        [
            Setback(
                checkpoint="dense", stage="load", reason="no kernel", mendable=mendable
            )
        ],
        (),
    )
    with pytest.raises(
        kind,
        match=(
            "nothing could be evaluated: dense does not load, and was set aside: no"
            " kernel"
        ),
    ):
        log.need_something(RecordStore(tmp_path))
    log.need_something(_store(tmp_path, "wanda", {0: "ok"}))


DIED = ActorDiedError()
CANCELLED = EngineError("vLLM died in a step: RuntimeError: cancelled")
KILLED = (
    "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down"
    " executor."
)


@pytest.mark.parametrize(
    ("error", "written", "said"),
    [
        (
            DIED,
            "INFO bye\nValueError: head_dim 7\nINFO bye\n",
            "ValueError: head_dim 7",
        ),
        (
            DIED,
            "INFO fine\n",
            "its process ended without a word: it was killed, or out of memory",
        ),
        (
            OutOfMemoryError("OOM"),
            "",
            "its process was ended by Ray, as its node was running out of memory",
        ),
        (
            RayTaskError("load", "Traceback", CANCELLED),
            f"ERROR {KILLED}\nRuntimeError: cancelled\n",
            KILLED,
        ),
        (RayTaskError("load", "Traceback", CANCELLED), "", str(CANCELLED)),
        (
            RayTaskError("load", "Traceback", EngineError("no room")),
            "ValueError: in the log\n",
            "no room",
        ),
        (
            RayTaskError("load", "Traceback", KeyError("x")),
            "ValueError: in the log\n",
            "KeyError: 'x'",
        ),
        (
            Hung("no sign of progress for 600 s"),
            "ValueError: in the log\n",
            "no sign of progress for 600 s",
        ),
    ],
)
def test_the_reason_of_a_death_is_what_its_process_wrote(
    tmp_path, error, written, said
) -> None:
    log, before = tmp_path / "engine-1.log", "ValueError: of the process before\n"
    log.write_text(before + written, encoding="utf-8")
    assert last_words(error, log, len(before)) == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB.", None),
        (
            (
                "(EngineCore_0 pid=7) ERROR 11-22 05:00:00 [core.py:9] ValueError:"
                " head_dim 7"
            ),
            "ValueError: head_dim 7",
        ),
        ("Fatal Python error: Segmentation fault", None),
        (
            "*** SIGSEGV received at time=1763780000 on cpu 1 ***",
            "SIGSEGV received at time=1763780000 on cpu 1 ***",
        ),
        ("terminate called after throwing an instance of 'std::bad_alloc'", None),
        ("[rank0]:[W] F1122 x.cc:3] Check failed: a == b", "Check failed: a == b"),
        ("RuntimeError:   two\tspaces ", "RuntimeError: two spaces"),
        ("RuntimeError: cancelled by the user", None),
        (
            (
                "(EngineCore pid=9) ERROR 11-22 05:00:00 [multiproc_executor.py:315]"
                f" {KILLED}"
            ),
            KILLED,
        ),
    ],
)
def test_what_went_wrong_is_found_behind_what_a_logger_writes(
    line: str, said: str | None
) -> None:
    log = (
        f"INFO starting\nKeyError: 'earlier'\n{line}\n  File \"x.py\", line 3, in"
        " f\nINFO bye\n"
    )
    assert last_error(log) == (said or line)


@pytest.mark.parametrize(
    "log",
    [
        "",
        "INFO no error at all\nWARNING: slow\n",
        "0 errors, Error rate 3 %",
        "RuntimeError: cancelled\n",
    ],
)
def test_a_log_without_an_error_or_of_what_only_waited_for_another_process_says_nothing(
    log: str,
) -> None:
    assert last_error(log) is None


def test_only_what_this_process_wrote_is_read(tmp_path: Path) -> None:
    log = tmp_path / "engine-0.log"
    assert (size(log), tail(log, 0)) == (0, "")
    log.write_bytes(b"ValueError: of the process before\n")
    start = size(log)
    log.write_bytes(log.read_bytes() + b"INFO \xff fine\n")
    assert last_error(tail(log, 0)) == "ValueError: of the process before"
    assert last_error(tail(log, start)) is None
    log.write_bytes(b"x" * 10**6 + b"\nValueError: last\n")
    assert last_error(tail(log, 0)) == "ValueError: last"
    assert len(tail(log, 0)) < 10**5
    # Of a log that has grown too long the end is kept, and its process writes on.
    log = tmp_path / "engine-0.log"
    assert not cut(log)
    with log.open("ab", buffering=0) as process:
        process.write(b"the first line\n" + b"x" * failure_log._MOST_BYTES)
        process.write(b"\nthe last line\n")
        assert cut(log)
        assert not cut(log)
        process.write(b"KeyError: later\n")
    text = log.read_text()
    assert text.startswith("(what came before was dropped at 32 MiB)\n")
    assert text.endswith("x\nthe last line\nKeyError: later\n")
    assert len(text) < 10**5
    assert last_error(tail(log, 0)) == "KeyError: later"
