"""Chunks of the item view come back as they were kept, wherever they lie."""

import pytest

from evaluator.report.chunks import Chunks


@pytest.mark.parametrize("held_bytes", [1, 1 << 20])
def test_texts_come_back_in_any_order(held_bytes):
    chunks = Chunks(held_bytes)
    names = [chunks.add("x" * number + "=") for number in range(5)]
    assert list(chunks) == names == [f"chunk-{number}" for number in range(5)]
    assert chunks[names[3]] == "xxx="
    assert chunks.add("last") == "chunk-5"
    assert [chunks.size(name) for name in chunks] == [1, 2, 3, 4, 5, 4]
    assert dict(chunks)["chunk-0"] == "="
    with pytest.raises(KeyError):
        chunks["chunk-6"]
