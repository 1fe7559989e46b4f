"""The reason of a death, in the log of its process."""

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError

from evaluator.core.errors import EngineError
from evaluator.core.liveness import Hung
from launch.run.work.logs import last_error, last_words, size, tail

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
            "its process ended without a word: it was killed, or out of memory, or Ray's disk is full",
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
def test_reason_of_a_death(tmp_path, error, written, said) -> None:
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
def test_last_error_without_logger_prefix(line: str, said: str | None) -> None:
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
def test_log_without_an_error(log: str) -> None:
    assert last_error(log) is None


def test_log_is_read_from_its_start(tmp_path: Path) -> None:
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
