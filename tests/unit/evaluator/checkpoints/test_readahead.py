"""Reading ahead: what is asked of the kernel, and when nothing is."""

from pathlib import Path

import pytest

from evaluator.checkpoints import files as readahead


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []

    def fadvise(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert (offset, length, advice) == (0, 0, readahead.os.POSIX_FADV_WILLNEED)
        sizes.append(readahead.os.fstat(descriptor).st_size)

    monkeypatch.setattr(readahead.os, "posix_fadvise", fadvise)
    return sizes


def test_every_weight_file_is_read_ahead_and_nothing_else(tmp_path: Path, advised: list[int]) -> None:
    for name, size in (("model-1.safetensors", 10), ("model-2.safetensors", 20), ("config.json", 30)):
        (tmp_path / name).write_bytes(b"x" * size)
    thread = readahead.read_ahead(tmp_path)
    assert thread is not None
    thread.join()
    assert advised == [10, 20]


def test_nothing_is_read_ahead_without_files_or_memory(
    tmp_path: Path, advised: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert readahead.read_ahead(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10)
    monkeypatch.setattr(readahead, "_available_bytes", lambda: 19)
    assert readahead.read_ahead(tmp_path) is None
    monkeypatch.setattr(readahead, "_available_bytes", lambda: 20)
    thread = readahead.read_ahead(tmp_path)
    assert thread is not None
    thread.join()
    assert advised == [10]


def test_a_file_that_goes_missing_is_left_out(tmp_path: Path, advised: list[int]) -> None:
    there = tmp_path / "b.safetensors"
    there.write_bytes(b"x")
    readahead._advise([tmp_path / "a.safetensors", there])
    assert advised == [1]
    assert readahead._available_bytes() > 0
