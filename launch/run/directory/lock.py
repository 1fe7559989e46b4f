"""One driver at a time writes a run directory, on any file system. A driver that lost
the directory cannot write there.

`RUN/.lease/000007.json` is the latest claim, `000007.beat` its owner's beats, and
`000007-<token>/` the folder where its owner makes every file before the file gets its
name. `RUN/.lock` is the file lock, if the file system has locks.

A driver makes a claim by linking a finished file to the next number; only one process
can succeed. A driver that takes over first removes the previous owner's folder, and
then reads the directory. If the previous owner was only paused, it now has no file left
to rename. Files that it renamed before count as finished; the others are gone with the
folder. So there is no gap between check and write. `evaluator/core/liveness.py` decides
who may take over.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.core.liveness import (
    Decision,
    LeaseClaim,
    Owner,
    Pace,
    Sight,
    SilenceWatch,
    decide,
    sight,
    this_process,
)
from evaluator.store.files import fence, lift_fence

FOLDER = ".lease"
LOCK = ".lock"
PACE = Pace()
_LISTINGS = 40  # tries to read a listed file, which may disappear in between
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class LeaseLost(ResurfaceError):
    """Another driver has taken over the run directory; this one must not write there
    any more."""


class RunLock:
    """Held by the one driver that writes a run directory. However that driver ends,
    another can take it afterwards."""

    def __init__(
        self,
        run_dir: Path,
        *,
        tell: Callable[[str], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Raises InputError if another process writes there, OSError if the
        directory is not writable."""
        self.run_dir = run_dir
        self._pace = PACE if pace is None else pace
        self._tell = tell or (lambda text: None)
        self.taken_from = ""  # the process that had not given the directory back
        self._lost: LeaseLost | None = None
        self._given_back = False
        (run_dir / FOLDER).mkdir(exist_ok=True)
        self._file: IO[str] = (run_dir / LOCK).open("a")
        try:
            self._claim = self._take(_locked(self._file))
        except BaseException:
            self._file.close()
            raise
        # This process makes each file here before the file gets its name. The folder is
        # gone once the lease is lost.
        self.folder = _folder(run_dir, self._claim)
        fence(run_dir, self)
        self._ended = threading.Event()
        self._beating = threading.Thread(
            target=self._beat, name="lease-beat", daemon=True
        )
        self._beating.start()

    def check(self) -> None:
        """Raises LeaseLost if another driver has taken over the directory."""
        if self._lost is None:
            last = latest_claim(self.run_dir)
            if (
                last is None
                or last.number != self._claim.number
                or not self.folder.is_dir()
            ):
                self._lose(last)
        self.need_unlost()

    def folder_is_gone(self) -> None:
        """Raises LeaseLost: only a driver that takes over removes the folder."""
        if self._lost is None:
            self._lose(latest_claim(self.run_dir))
        self.need_unlost()

    def need_unlost(self) -> None:
        """Raises LeaseLost if the loss is known already. Reads no file; the
        knowledge is at most one beat old."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Give the directory back; does nothing if it is lost."""
        if self._given_back:
            return
        self._given_back = True
        self._ended.set()
        self._beating.join()
        lift_fence(self.run_dir, self)
        self._file.close()
        # lost, or the disk is full: others will soon see that the owner is gone
        with contextlib.suppress(OSError):
            self._publish(
                json.dumps(asdict(replace(self._claim, released=True))),
                f"{self._claim.number:06d}.json",
            )
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, locked: bool | None) -> LeaseClaim:
        """`locked`: whether this process has the file lock; None: the file system
        has none."""
        while True:
            last = latest_claim(self.run_dir)
            seen: Sight = (
                "elsewhere" if last is None or last.owner is None else sight(last.owner)
            )
            decision = decide(last, seen, locked_by_another=locked is False)
            if decision == "watch" and last is not None:
                decision = self._watched(last, seen)
            if decision == "refuse":
                whose = (
                    ""
                    if last is None or last.released or last.owner is None
                    else f": {last.owner}"
                )
                raise InputError(
                    f"{self.run_dir}: another resurface process is writing this run"
                    f" directory{whose}"
                )
            if decision == "take":
                number, token = (
                    1 if last is None else last.number + 1,
                    secrets.token_hex(8),
                )
                claim = LeaseClaim(
                    number=number,
                    token=token,
                    owner=this_process(),
                    locked=locked is not False,
                )
                if self._made(claim):
                    self.taken_from = (
                        ""
                        if last is None or last.released
                        else str(last.owner or "an unknown process")
                    )
                    self._remove_others(claim)
                    return claim

    def _watched(self, last: LeaseClaim, seen: Sight) -> Decision:
        """Watch the owner of the latest claim, and decide; "watch" if there is a new
        claim or this one was released."""
        watch = SilenceWatch(
            self._pace, now=time.monotonic(), beats=beats_of(self.run_dir, last)
        )
        who = "another process" if last.owner is None else str(last.owner)
        self._tell(
            f"{who} holds {self.run_dir} and"
            f" {'is stopped' if seen == 'stopped' else 'may be dead'}: looking for a"
            f" sign of life for up to {self._pace.silence:.0f} s"
        )
        decision: Decision = "watch"
        while decision == "watch":
            time.sleep(self._pace.look_seconds)
            now = latest_claim(self.run_dir)
            if now is None or now.token != last.token or now.released:
                return "watch"
            decision = watch.look(
                now=time.monotonic(), beats=beats_of(self.run_dir, last)
            )
        return decision

    def _made(self, claim: LeaseClaim) -> bool:
        """Make a claim, unless another process has that number or a higher one."""
        unseen = self.run_dir / FOLDER / f".{claim.number:06d}-{claim.token}.json"
        named = _file(self.run_dir, claim.number)
        text = json.dumps(asdict(claim))
        _folder(self.run_dir, claim).mkdir()
        try:
            unseen.write_text(text, encoding="utf-8")
            # ours after all, if a file server's answer was lost; see below
            with contextlib.suppress(FileExistsError):
                try:
                    os.link(unseen, named)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    # for a moment the file exists and is empty
                    with named.open("x", encoding="utf-8") as file:
                        file.write(text)
        finally:
            unseen.unlink(missing_ok=True)
        last = latest_claim(self.run_dir)
        if last is not None and last.token == claim.token:
            return True
        with contextlib.suppress(OSError):  # the claim's owner may have removed it
            _folder(self.run_dir, claim).rmdir()
        return False

    def _remove_others(self, claim: LeaseClaim) -> None:
        """Remove the files of earlier claims, beginning with the folders that their
        owners write into."""
        own = {
            _file(self.run_dir, claim.number).name,
            _folder(self.run_dir, claim).name,
        }
        for each in sorted(
            (self.run_dir / FOLDER).iterdir(), key=lambda path: not path.is_dir()
        ):
            number = each.name.lstrip(".")[:6]
            if each.name in own or not number.isdecimal() or int(number) > claim.number:
                continue
            if each.is_dir():
                _remove_folder(each)
            else:
                each.unlink(missing_ok=True)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self._pace.beat_seconds):
            count += 1
            try:
                self._publish(str(count), f"{self._claim.number:06d}.beat")
            except FileNotFoundError:
                with contextlib.suppress(LeaseLost, OSError):
                    self.folder_is_gone()
                return
            except OSError:  # a full disk, or an unreachable file server
                continue

    def _publish(self, text: str, name: str) -> None:
        made = self.folder / name
        made.write_text(text, encoding="utf-8")
        made.replace(self.run_dir / FOLDER / name)

    def _lose(self, last: LeaseClaim | None) -> None:
        taker = (
            last.owner
            if last is not None and last.number != self._claim.number
            else None
        )
        what = "the lease is gone" if taker is None else f"{taker} has taken over"
        self._lost = LeaseLost(
            f"{self.run_dir}: {what}: this process ({self._claim.owner}) had given no"
            " sign of life for too long; it writes nothing more there, and what it had"
            " finished is kept"
        )


def _written(run_dir: Path) -> int | None:
    file = run_dir / "run.json"
    return file.stat().st_mtime_ns if file.exists() else None


@contextlib.contextmanager
def hold(run_dir: Path, tell: Callable[[str], None] | None = None) -> Iterator[RunLock]:
    """Hold a run directory. A refused command leaves it as it was. Raises InputError
    if another process holds it."""
    made, fresh = (
        [path for path in (run_dir, *run_dir.parents) if not path.exists()],
        not (run_dir / FOLDER).exists(),
    )
    try:
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            lock = RunLock(run_dir, tell=tell)
        except OSError as error:
            raise InputError(
                f"{run_dir}: --out: cannot write there: {error.strerror}"
            ) from error
        before = _written(run_dir)
        try:
            yield lock
        finally:
            # Before others can take the lock, and only what is still ours: a paused
            # process may have lost it.
            if (
                fresh
                and _written(run_dir) == before
                and latest_claim(run_dir) == lock._claim
            ):
                shutil.rmtree(run_dir / FOLDER, ignore_errors=True)
                (run_dir / LOCK).unlink(missing_ok=True)
            lock.release()
    finally:
        with contextlib.suppress(OSError):  # no longer empty
            for path in made:
                path.rmdir()


def need_place(path: Path) -> None:
    """Raises InputError if a path can never be a run directory. Imports nothing
    heavy: commands call it first."""
    nearest = nearest_existing(path)
    if not nearest.is_dir():
        raise InputError(f"{path}: --out: {nearest} is a file, not a directory")
    # A driver that ended before its first result leaves the files of its lease. If its
    # directory was removed meanwhile, it leaves folders without files.
    if (
        path.is_dir()
        and not (path / "run.json").exists()
        and not _is_empty(path, {LOCK, FOLDER})
    ):
        raise InputError(
            f"{path}: --out exists and is not a run directory (it has no run.json)"
        )


def _is_empty(folder: Path, but: Collection[str] = ()) -> bool:
    """Whether a folder holds only empty folders and the names in `but`. False if
    that cannot be read."""
    try:
        return all(
            each.name in but
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


def latest_claim(run_dir: Path) -> LeaseClaim | None:
    """The claim with the highest number, without an owner if it cannot be read; None
    if there is none."""
    for _ in range(_LISTINGS):
        try:
            names = [
                name
                for name in os.listdir(run_dir / FOLDER)
                if name.endswith(".json") and name[:-5].isdecimal()
            ]
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not names:
            return None
        number = max(int(name[:-5]) for name in names)
        try:
            found = json.loads(_file(run_dir, number).read_bytes())
            token, locked, released = (
                str(found["token"]),
                bool(found["locked"]),
                bool(found["released"]),
            )
            owner = Owner(**found["owner"])
            return LeaseClaim(
                number=number,
                token=token,
                owner=owner,
                locked=locked,
                released=released,
            )
        except FileNotFoundError:  # a higher one has just replaced it
            time.sleep(0.05)
        except (
            IsADirectoryError,
            ValueError,
            TypeError,
            KeyError,
        ):  # half-written, on a file system without links
            break
    return LeaseClaim(number=number, token="", owner=None, locked=False)


def beats_of(run_dir: Path, claim: LeaseClaim) -> int | None:
    """The number of beats from a claim's owner; None before the first."""
    with contextlib.suppress(OSError, ValueError):
        return int(
            (run_dir / FOLDER / f"{claim.number:06d}.beat").read_text(encoding="ascii")
        )
    return None


def _file(run_dir: Path, number: int) -> Path:
    return run_dir / FOLDER / f"{number:06d}.json"


def _folder(run_dir: Path, claim: LeaseClaim) -> Path:
    return run_dir / FOLDER / f"{claim.number:06d}-{claim.token}"


def _locked(file: IO[str]) -> bool | None:
    """Whether this process has the file lock; None if the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _NO_LOCKS else False
    return True


def _remove_folder(folder: Path) -> None:
    """Rename, then remove, a folder in which others may still write: their path
    becomes invalid at once."""
    aside = folder.with_name(f".{folder.name.lstrip('.')}")
    with contextlib.suppress(FileNotFoundError):
        folder.replace(aside)
    for _ in range(5):
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():
            return
        time.sleep(0.2)
