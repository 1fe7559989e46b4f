"""Which folders of Ray's sessions are removed: those of dead drivers of ours, and
nobody else's."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ray._common.utils import get_default_ray_temp_dir

from evaluator.core.liveness import Owner, this_process
from launch.run.work.cluster import mark, remove_leftovers


def _session(folder: Path, second: int, pid: int, owner: Owner | None = None) -> Path:
    made = folder / f"session_2026-01-01_00-00-{second:02}_000000_{pid}"
    (made / "logs").mkdir(parents=True)
    if owner is not None:
        (made / "resurface.json").write_text(json.dumps(asdict(owner)))
    return made


def test_dead_sessions_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert remove_leftovers() == []
    tmp_path = Path(get_default_ray_temp_dir())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    own, dead = this_process(), replace(this_process(), pid=ended.pid, started="1")
    living = _session(tmp_path, 1, os.getpid())
    mark(living)
    gone, used = (
        _session(tmp_path, 2, ended.pid, dead),
        _session(tmp_path, 3, ended.pid, dead),
    )
    elsewhere = _session(tmp_path, 4, ended.pid, replace(dead, machine="another"))
    unmarked, latest = _session(tmp_path, 6, ended.pid), tmp_path / "session_latest"
    kept = [
        living,
        used,
        elsewhere,
        unmarked,
        latest,
        _session(tmp_path, 5, ended.pid, own),
    ]
    latest.symlink_to(gone)
    raylet = subprocess.Popen(
        [sys.executable, "-c", "input()", str(used)], stdin=subprocess.PIPE
    )
    try:
        said = remove_leftovers()
    finally:
        raylet.communicate()
    assert not gone.exists()
    assert all(each.is_dir() or each.is_symlink() for each in kept)
    assert said == [
        f"{tmp_path}: removed 1 sessions of killed runs",
        (
            f"{tmp_path}: 1 sessions without a process stay: they may not be ours"
            f" ({unmarked.name})"
        ),
    ]
