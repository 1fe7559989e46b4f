"""The folders of Ray's sessions that killed drivers left in Ray's temporary directory.

A driver marks its session with its process. Only a marked session of a dead process of this machine and user is
removed, and only if no process names it."""

import json
import os
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from evaluator.core.liveness import Owner, sight, this_process

_MARK = "resurface.json"


def mark(session: Path) -> None:
    """State in a session's folder that it belongs to this process."""
    with suppress(OSError):
        (session / _MARK).write_text(json.dumps(asdict(this_process())), encoding="utf-8")


def remove_leftovers() -> list[str]:
    """Remove the sessions of dead drivers of ours; a line about these, and one about others that no process names."""
    folder = Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"  # noqa: S108  (Ray's own rule)
    ours: list[Path] = []
    others: list[Path] = []
    used = " ".join(" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    for path in sorted(folder.glob("session_2*")):
        with suppress(OSError, ValueError, TypeError):
            if path.is_symlink() or path.stat().st_uid != os.getuid() or path.name in used:
                continue
            if not (path / _MARK).exists():
                others.append(path)
            elif sight(Owner(**json.loads((path / _MARK).read_bytes()))) == "gone":
                ours.append(path)
    for path in ours:
        shutil.rmtree(path, ignore_errors=True)
    said = [f"{folder}: removed {len(ours)} sessions of killed runs"] if ours else []
    if others:
        said.append(f"{folder}: {len(others)} sessions without a process stay: they may not be ours ({others[0].name})")
    return said
