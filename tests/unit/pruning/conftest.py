"""Tiny random checkpoints of every architecture, with a tokenizer, made anew for
each test session."""

import json
from pathlib import Path

import pytest
import torch

from tests.support import pruning as tiny


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """name -> directory, built on first use."""
    made: dict[str, Path] = {}

    def get(name: str, dtype: torch.dtype = torch.bfloat16, **changes) -> Path:
        key = json.dumps([name, str(dtype), changes], sort_keys=True)
        if key not in made:
            directory = tmp_path_factory.mktemp(name)
            tiny.build(name, directory, dtype, **changes)
            made[key] = directory
        return made[key]

    return get


@pytest.fixture
def passages(tmp_path) -> Path:
    file = tmp_path / "passages.txt"
    file.write_text("\n".join(tiny.lines(40)) + "\n", encoding="utf-8")
    return file
