"""Shared by every test: quiet, offline, without a GPU unless a test asks for one, and no engine outside slow tests."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
if "PYTEST_XDIST_WORKER" in os.environ:  # threads that wait for each other beside other work lose more than they gain
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.support.guard import GUARD


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: what the test may start."""
    GUARD.next_test(slow=any(item.get_closest_marker(mark) for mark in ("slow", "gpu")))
