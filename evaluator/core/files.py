"""Files that appear whole or not at all: written under another name, synced, renamed.

A fence protects a directory from processes that no longer own it. An owner writes each
file in its own folder first and renames it then. A process that takes the directory
over removes that folder, so the old owner's renames fail.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from evaluator.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_PLACES = (
    *(
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    ),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EPIPE),
)
# the wide forms too: some programs read them as the narrow ones
_BEGINNINGS = tuple("=+-@\t\r\n＝＋－＠")
_numbers = itertools.count()


class Fence(Protocol):
    """Stops a process from writing into a directory that another process has taken
    over."""

    @property
    def folder(self) -> Path:
        """The folder for unfinished files. A process that takes the directory over
        removes it first."""

    def check(self) -> None:
        """Raises ResurfaceError when this process may no longer write."""


_fences: dict[str, Fence] = {}


def fence(directory: Path, owner: Fence) -> None:
    """From now on, this process writes below `directory` only while `owner` allows
    it."""
    _fences[os.path.abspath(directory)] = owner


def lift_fence(directory: Path, owner: Fence) -> None:
    """The end of `fence`."""
    if _fences.get(os.path.abspath(directory)) is owner:
        del _fences[os.path.abspath(directory)]


def need_unfenced(path: Path) -> None:
    """Raises ResurfaceError if another process took over. Just after, one still can.
    For removing and copying."""
    owner = _fence_of(path)
    if owner is not None:
        owner.check()


def cache_folder() -> Path:
    """What this user's runs share."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "resurface"


def move_into(folder: Path, path: Path) -> Path:
    """Move a file into a folder, created if missing; returns the new path. A taken
    name gets a number."""
    need_unfenced(path)
    folder.mkdir(parents=True, exist_ok=True)
    names = itertools.chain(
        [path.name],
        (f"{path.stem}.{number}{path.suffix}" for number in itertools.count(2)),
    )
    target = next(folder / name for name in names if not (folder / name).exists())
    path.replace(target)
    return target


def write_atomically(
    path: Path, content: bytes | Iterable[bytes], *, named: bool = False
) -> None:
    """Write bytes or parts, whole or not at all: temporary file, fsync, rename. Raises
    InputError if it cannot.

    `named`: by the user of this command. Then a link stays, and so does a pipe or a
    device, which gets the bytes.
    """
    parts = [content] if isinstance(content, bytes) else content
    path = Path(os.path.realpath(path)) if named else path
    owner = _fence_of(path)
    try:
        if named and path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as handle:
                handle.writelines(parts)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if owner is None:
            _renamed(path.parent / f".{path.name}.{os.getpid()}.writing", path, parts)
        else:
            _fenced(owner, path, parts)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"{path}: no space left on the device; free some and run the same"
                " command"
            ) from error
        if error.errno in _PLACES:
            raise InputError(f"{path}: cannot write there: {error.strerror}") from error
        raise


def write_parquet(table: pa.Table, path: Path) -> None:
    """`write_atomically` of an Arrow table."""
    write_atomically(path, parquet_bytes(table))


def parquet_bytes(table: pa.Table) -> bytes:
    """The bytes of a Parquet file with this table. Its pages have checksums."""
    # late: a process that only reads a run's state does not need it
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    # A part has too few rows for dictionaries and statistics: without them, its file is
    # smaller, and sooner written.
    options = {
        "use_dictionary": False,
        "write_statistics": False,
        "compression": "zstd",
    }
    pq.write_table(table, sink, write_page_checksum=True, **options)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as CSV that is safe to open in a spreadsheet, with a header and
    without row numbers.

    A spreadsheet reads a cell as a formula if it begins with =, +, -, @, a tab or a
    line end. A formula can run programs or send other cells away, and texts come
    from checkpoints, data sets and engines. So such a text, if it is no number, gets
    a leading apostrophe, which marks it as text."""
    # late: a process that only reads a run's state does not need it
    import pandas as pd

    safe = frame.copy(deep=False)
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):  # categories hold texts too
            safe[name] = frame[name].astype(object).map(_as_text)
    return safe.rename(columns=_as_text).to_csv(index=False).encode()


def _as_text(value: Any) -> Any:
    """A cell that no spreadsheet computes. Carriage returns, which end a row in some
    programs, become newlines."""
    if not isinstance(value, str):
        return value
    formula = value.startswith(_BEGINNINGS)
    if formula:
        with suppress(ValueError):
            float(value)
            # a number after a tab is still a cell that begins with a tab
            formula = value != value.strip()
    return (f"'{value}" if formula else value).replace("\r\n", "\n").replace("\r", "\n")


def _fenced(owner: Fence, path: Path, parts: Iterable[bytes]) -> None:
    temporary = owner.folder / f"{next(_numbers)}.writing"
    try:
        _renamed(temporary, path, parts)
    except OSError as error:
        owner.check()
        if error.errno != errno.EXDEV:
            raise
        # A link leads to another file system. Another process may take over between
        # this check and the rename.
        _renamed(path.parent / f".{path.name}.writing", path, parts, owner.check)


def _renamed(
    temporary: Path,
    path: Path,
    parts: Iterable[bytes],
    check: Callable[[], None] | None = None,
) -> None:
    try:
        with temporary.open("wb") as handle:
            handle.writelines(parts)
            handle.flush()
            os.fsync(handle.fileno())
        if check is not None:
            check()
        temporary.replace(path)
    except BaseException:
        # where nothing can be written, there is nothing to remove either
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _fence_of(path: Path) -> Fence | None:
    if not _fences:
        return None
    absolute = os.path.abspath(path)
    inside = (
        each
        for each in list(_fences)
        if absolute == each or absolute.startswith(each.rstrip(os.sep) + os.sep)
    )
    nearest = max(inside, key=len, default=None)
    return None if nearest is None else _fences[nearest]
