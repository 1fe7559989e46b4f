"""An engine waits for the memory of a process that has just ended, and not for ever."""

from collections.abc import Iterator

import pytest

from evaluator.engine.vllm import free_memory
from evaluator.engine.vllm.free_memory import wait_for_memory

GIB = 2**30


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each pause, on a clock that only pauses move."""
    pauses: list[float] = []
    monkeypatch.setattr(free_memory.time, "sleep", pauses.append)
    monkeypatch.setattr(free_memory.time, "monotonic", lambda: sum(pauses))
    return pauses


def _free(monkeypatch: pytest.MonkeyPatch, seen: Iterator[int]) -> None:
    monkeypatch.setattr(free_memory.torch.cuda, "mem_get_info", lambda: (next(seen) * GIB, 80 * GIB))


def test_it_goes_on_once_there_is_enough(monkeypatch: pytest.MonkeyPatch, waited: list[float]) -> None:
    seen = iter([4, 40, 71, 72, 80])
    _free(monkeypatch, seen)
    wait_for_memory(0.9)
    assert len(waited) == 3
    assert list(seen) == [80]  # 72 of 80 are enough


def test_a_gpu_that_somebody_else_uses_is_left_to_vllm_to_refuse(
    monkeypatch: pytest.MonkeyPatch, waited: list[float]
) -> None:
    _free(monkeypatch, iter(lambda: 40, None))
    wait_for_memory(0.9)
    assert 59 < sum(waited) < 62
