"""The last error of a log, among all that processes write."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.run.work import failure_log
from launch.run.work.failure_log import cut, last_error, size, tail


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB.", None),
        ("(EngineCore_0 pid=7) ERROR 11-22 05:00:00 [core.py:9] ValueError: head_dim 7", "ValueError: head_dim 7"),
        ("Fatal Python error: Segmentation fault", None),
        ("*** SIGSEGV received at time=1763780000 on cpu 1 ***", "SIGSEGV received at time=1763780000 on cpu 1 ***"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", None),
        ("[rank0]:[W] F1122 x.cc:3] Check failed: a == b", "Check failed: a == b"),
        ("RuntimeError:   two\tspaces ", "RuntimeError: two spaces"),
        (
            "(EngineCore pid=9) ERROR 11-22 05:00:00 [multiproc_executor.py:315] Worker proc VllmWorker-1 died "
            "unexpectedly (exit code: -9), shutting down executor.",
            "Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.",
        ),
    ],
)
def test_what_went_wrong_is_found_behind_what_a_logger_writes(line: str, said: str | None) -> None:
    log = f"INFO starting\nKeyError: 'earlier'\n{line}\n  File \"x.py\", line 3, in f\nINFO bye\n"
    assert last_error(log) == (said or line)


@pytest.mark.parametrize("log", ["", "INFO no error at all\nWARNING: slow\n", "0 errors, Error rate 3 %"])
def test_a_log_without_an_error_says_nothing(log: str) -> None:
    assert last_error(log) is None


def test_what_only_waited_for_a_process_that_died_is_passed_over() -> None:
    log = "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)\nRuntimeError: cancelled\n"
    assert last_error(log) == "Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"
    assert last_error("RuntimeError: cancelled\n") is None
    assert last_error("RuntimeError: cancelled by the user\n") == "RuntimeError: cancelled by the user"


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


def test_of_a_log_that_has_grown_too_long_the_end_is_kept_and_its_process_writes_on(tmp_path: Path) -> None:
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
