"""A GPU's memory counters."""

import pytest
import torch

from pruning.model import memory


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_starts_before_counter_reset(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch refuses to reset the counters of a numbered device before that."""
    called: list[object] = []
    monkeypatch.setattr(torch.cuda, "init", lambda: called.append("init"))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", called.append)
    memory.reset_peak(torch.device(name))
    assert called == ["init", torch.device(name)]
