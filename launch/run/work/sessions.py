"""The folders that Ray makes for its sessions in its temporary directory. A killed driver leaves its own there.

A driver marks its session with its process. Only a marked session of a dead process of this machine and user is
removed, and only if no process names it.
"""

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from evaluator.core.liveness import Owner, sight, this_process

_MARK = "resurface.json"
_NAME = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_(\d+)")


def temporary_folder() -> Path:
    """Ray's temporary directory, by Ray's own rule."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"  # noqa: S108


def mark(session: Path) -> None:
    """State in a session's folder that it belongs to this process."""
    with suppress(OSError):
        (session / _MARK).write_text(json.dumps(asdict(this_process())), encoding="utf-8")


def remove_leftovers(folder: Path) -> list[str]:
    """Remove the sessions of dead drivers of ours; a line about these, and one about those that are unmarked."""
    ours: list[Path] = []
    unknown: list[Path] = []
    used = b""  # the command lines of all processes
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            used += process.read_bytes() + b"\n"
    for path in sorted(folder.glob("session_*")):
        with suppress(OSError, ValueError, TypeError):
            own = path.lstat().st_uid == os.getuid() and path.is_dir() and not path.is_symlink()
            named = _NAME.fullmatch(path.name)
            if named is None or not own or path.name.encode() in used:
                continue
            if (path / _MARK).exists():
                if sight(Owner(**json.loads((path / _MARK).read_bytes()))) == "gone":
                    ours.append(path)
            elif not Path(f"/proc/{named[1]}").exists():
                unknown.append(path)
    for path in ours:
        shutil.rmtree(path, ignore_errors=True)
    said = [f"{folder}: removed {len(ours)} sessions of killed runs"] if ours else []
    if unknown:
        said.append(f"{folder}: {len(unknown)} sessions without a process are unmarked, and stay, as {unknown[0].name}")
    return said
