"""A tiny checkpoint, made once for each test session."""

from pathlib import Path

import pytest

from tests.support.models import save_tiny_model


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("quantised") / "model", dtype="bfloat16")
