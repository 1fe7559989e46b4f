"""What of the driver's environment the processes of a cluster get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.run.work.cluster import _sent_environment


def test_places_of_modules_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    sent = _sent_environment({"RESURFACE_PLUGINS": "riddles", "PYTHONPATH": "mine:/theirs:", "HOME": "/home"})
    assert sent == {"RESURFACE_PLUGINS": "riddles", "PYTHONPATH": f"{tmp_path}/mine:/theirs:${{PYTHONPATH}}"}
    assert sent["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path / "mine")


def test_nothing_is_sent_that_is_not_set() -> None:
    assert _sent_environment({"PYTHONPATH": "", "HOME": "/home"}) == {}
