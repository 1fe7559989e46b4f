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
    folder = Path(get_default_ray_temp_dir())
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = replace(this_process(), pid=ended.pid, started="1")
    living = _session(folder, 1, os.getpid())
    mark(living)
    gone, used = [_session(folder, each, ended.pid, dead) for each in (2, 3)]
    elsewhere = _session(folder, 4, ended.pid, replace(dead, machine="another"))
    unmarked = _session(folder, 6, ended.pid)
    program = [sys.executable, "-u", "-c", "print('begun'); input()", str(used)]
    raylet = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert raylet.stdout is not None
        # until the program runs, it has no command line
        assert raylet.stdout.readline() == "begun\n"
        said = remove_leftovers()
    finally:
        raylet.communicate()
    assert not gone.exists()
    assert all(each.is_dir() for each in (living, used, elsewhere, unmarked))
    others = f"kept 1 session without a process ({unmarked.name}), perhaps of another"
    assert said == [
        f"{folder}: removed 1 session of killed runs",
        f"{folder}: {others} program: delete it if no Ray runs here",
    ]
