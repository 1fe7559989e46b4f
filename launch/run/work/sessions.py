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
_NAMED = 3


def temporary_folder() -> Path:
    """Ray's temporary directory, by Ray's own rule."""
    return Path(os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))) / "ray"  # noqa: S108


def mark(session: Path) -> None:
    """State in a session's folder that it belongs to this process."""
    with suppress(OSError):
        (session / _MARK).write_text(json.dumps(asdict(this_process())), encoding="utf-8")


def leftovers(folder: Path) -> tuple[list[Path], list[Path]]:
    """The sessions of dead drivers of ours, and those of this user that look dead but are unmarked."""
    ours: list[Path] = []
    unknown: list[Path] = []
    with suppress(OSError):
        used = _command_lines()
        for path in sorted(folder.iterdir()):
            named = _NAME.fullmatch(path.name)
            if named is None or path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.getuid():
                continue
            if path.name.encode() in used:
                continue
            if (path / _MARK).exists():
                with suppress(OSError, ValueError, TypeError):
                    if sight(Owner(**json.loads((path / _MARK).read_bytes()))) == "gone":
                        ours.append(path)
            elif not Path(f"/proc/{named[1]}").exists():
                unknown.append(path)
    return ours, unknown


def remove_leftovers(folder: Path) -> list[str]:
    """Remove the sessions of dead drivers of ours; a line about these, and one about those that may be others'."""
    ours, unknown = leftovers(folder)
    for path in ours:
        shutil.rmtree(path, ignore_errors=True)
    said = [f"removed {_counted(ours)} of killed runs from {folder}"] if ours else []
    if unknown:
        names = ", ".join(path.name for path in unknown[:_NAMED]) + ", ..." * (len(unknown) > _NAMED)
        said.append(f"{folder} has {_counted(unknown)} without a process, perhaps of killed programs: {names}")
    return said


def _counted(paths: list[Path]) -> str:
    return f"{len(paths)} session folder{'' if len(paths) == 1 else 's'} of Ray"


def _command_lines() -> bytes:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(process.read_bytes())
    return b"\n".join(lines)
