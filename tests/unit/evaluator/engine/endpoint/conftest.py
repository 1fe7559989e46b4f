"""Prepared directories lie in the test's own cache; tries follow each other soon."""

import functools

import httpx
import pytest

from evaluator.engine.endpoint import client


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.01)
    # which reads no certificates
    quick = functools.partial(httpx.AsyncClient, verify=False)
    monkeypatch.setattr(client.httpx, "AsyncClient", quick)
