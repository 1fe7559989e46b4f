"""A tiny checkpoint, made once for each test session."""

import pytest

from tests.support.models import save_tiny_model


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    return save_tiny_model(
        tmp_path_factory.mktemp("quantised") / "model", dtype="bfloat16"
    )
