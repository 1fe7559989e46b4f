"""A real tokenizer, small enough for unit tests."""

import pytest

from evaluator.checkpoints.tokenizer import load_tokenizer
from tests.support.models import save_tiny_model


@pytest.fixture(scope="package")
def tokenizer(tmp_path_factory):
    return load_tokenizer(save_tiny_model(tmp_path_factory.mktemp("tiny")))
