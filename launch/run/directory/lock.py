"""Whether a path can be a run directory, the lease that holds it, and the request that
its holder stops."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from evaluator.core.errors import InputError
from evaluator.core.lease import FOLDER, Lease

# a file that a run's driver looks for: every machine that shares the run directory can
# write it
STOP = "STOP"


@contextmanager
def hold(
    run_dir: Path, tell: Callable[[str], None] | None = None, *, take_over: bool = False
) -> Iterator[Lease]:
    """Hold a run directory. A refused command leaves it as it was. Raises InputError
    if another process holds it."""
    missing = [path for path in (run_dir, *run_dir.parents) if not path.exists()]
    try:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            lease = Lease(run_dir, tell=tell, take_over=take_over)
        except OSError as error:
            raise InputError(
                f"{run_dir}: cannot write there: {error.strerror}"
            ) from error
        try:
            (run_dir / STOP).unlink(missing_ok=True)  # of an earlier call
            yield lease
        finally:
            lease.release()
    finally:
        with suppress(OSError):  # no longer empty
            for path in missing:
                path.rmdir()


def need_place(path: Path) -> None:
    """Raises InputError if a path can never be a run directory. Imports nothing
    heavy: commands call it first."""
    nearest = nearest_existing(path)
    if not nearest.is_dir():
        raise InputError(f"{path}: --out: {nearest} is a file, not a directory")
    # A driver that was killed before its first result leaves the files of its lease. If
    # its directory was removed meanwhile, it leaves folders without files.
    if (
        path.is_dir()
        and not (path / "run.json").exists()
        and not _is_empty(path, but=FOLDER)
    ):
        found = ""
        if (path / "records").is_dir():
            found = f"; --reuse {path} takes its records to another run"
        raise InputError(
            f"{path}: --out exists and is not a run directory (it has no run.json){found}"
        )


def _is_empty(folder: Path, but: str = "") -> bool:
    """Whether a folder holds only empty folders, beside the one of that name. False if
    that cannot be read."""
    try:
        return all(
            each.name == but
            or (each.is_dir() and not each.is_symlink() and _is_empty(each))
            for each in folder.iterdir()
        )
    except OSError:
        return False


def nearest_existing(path: Path) -> Path:
    """The path itself, or its nearest parent that exists. Raises InputError for one
    that no file can have."""
    try:
        return next(
            parent
            for parent in (path.absolute(), *path.absolute().parents)
            if parent.exists()
        )
    except OSError as error:  # a long name
        raise InputError(f"{path}: --out: {error.strerror}") from error
