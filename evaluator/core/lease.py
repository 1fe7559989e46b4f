"""One process at a time writes a directory, on any file system. A process that lost
the directory cannot write there. Runs and compression jobs use it.

`DIR/.lease/000007.json` is the latest claim, `000007.beat` its owner's beats, and
`000007-<token>/` the folder where its owner makes every file before the file gets its
name. `DIR/.lock` is the file lock, if the file system has locks.

A process makes a claim by linking a finished file to the next number; only one can
succeed. A process that takes over first removes the previous owner's folder, and then
reads the directory. If the previous owner was only paused, it now has no file left to
rename. Files that it renamed before count as finished; the others are gone with the
folder. So there is no gap between check and write. `liveness.py` decides who may take
over.
"""

import errno
import fcntl
import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.core.files import fence, lift_fence
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

FOLDER = ".lease"
LOCK = ".lock"
PACE = Pace()
_GIVEN_BACK: set[str] = set()  # tokens of this process's claims
_LISTINGS = 40  # tries to read a listed file, which may disappear in between
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Held(InputError):
    """Another process writes the directory."""


class LeaseLost(ResurfaceError):
    """Another process has taken over the directory; this one must not write there any
    more."""


class Lease:
    """Held by the one process that writes a directory. However that process ends,
    another can take the directory afterwards."""

    def __init__(
        self,
        directory: Path,
        *,
        content: str = "run directory",
        tell: Callable[[str], None] | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`content`: what the directory holds, for messages. Raises Held if another
        process writes there, OSError if the directory is not writable."""
        self.directory = directory
        self._content = content
        self._pace = PACE if pace is None else pace
        self._tell = tell or (lambda text: None)
        self.taken_from = ""  # the process that had not given the directory back
        self._lost: LeaseLost | None = None
        self._given_back = False
        (directory / FOLDER).mkdir(exist_ok=True)
        self._file: IO[str] = (directory / LOCK).open("a")
        try:
            self._claim = self._take(_locked(self._file))
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):  # a full disk: leave nothing half-written
                with suppress(OSError):  # others have claims there
                    (directory / FOLDER).rmdir()
                    (directory / LOCK).unlink()
            raise
        # This process makes each file here before the file gets its name. The folder is
        # gone once the lease is lost.
        self.folder = _folder(directory, self._claim)
        fence(directory, self)
        self._ended = threading.Event()
        self._beating = threading.Thread(
            target=self._beat, name="lease-beat", daemon=True
        )
        self._beating.start()

    def check(self) -> None:
        """Raises LeaseLost if another process has taken over the directory."""
        if self._lost is None:
            last = latest_claim(self.directory)
            if (
                last is None
                or last.number != self._claim.number
                or not self.folder.is_dir()
            ):
                self._lose(last)
        self.need_unlost()

    def folder_is_gone(self) -> None:
        """Raises LeaseLost: only a process that takes over removes the folder."""
        if self._lost is None:
            self._lose(latest_claim(self.directory))
        self.need_unlost()

    def need_unlost(self) -> None:
        """Raises LeaseLost if the loss is known already. Reads no file; the
        knowledge is at most one beat old."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Give the directory back; does nothing if it is lost."""
        self._end(withdraw=False)

    def withdraw(self) -> None:
        """Give the directory back without a trace of the lease; the same as `release`
        if it is lost."""
        self._end(withdraw=True)

    def _end(self, *, withdraw: bool) -> None:
        if self._given_back:
            return
        self._given_back = True
        self._ended.set()
        self._beating.join()
        lift_fence(self.directory, self)
        # While the file lock is held, and only what is still ours: a paused process
        # may have lost the directory.
        if withdraw and latest_claim(self.directory) == self._claim:
            folder = self.directory / FOLDER
            _remove_folder(folder, folder.with_name(f"{FOLDER}-{self._claim.token}"))
            (self.directory / LOCK).unlink(missing_ok=True)
        self._file.close()
        # lost, or the disk is full: others will soon see that the owner is gone, but
        # this process is not
        _GIVEN_BACK.add(self._claim.token)
        with suppress(OSError):
            self._publish(
                json.dumps(asdict(replace(self._claim, released=True))),
                f"{self._claim.number:06d}.json",
            )
        shutil.rmtree(self.folder, ignore_errors=True)

    def _take(self, locked: bool | None) -> LeaseClaim:
        """`locked`: whether this process has the file lock; None: the file system
        has none."""
        while True:
            last = latest_claim(self.directory)
            if last is not None and last.token in _GIVEN_BACK:
                last = replace(last, released=True)
            seen: Sight = (
                "elsewhere" if last is None or last.owner is None else sight(last.owner)
            )
            decision = decide(last, seen, locked_by_another=locked is False)
            if decision == "watch" and last is not None:
                decision = self._watched(last, seen)
            if decision == "refuse":
                raise Held(
                    f"{self.directory}: another resurface process is writing this"
                    f" {self._content}{_holder(last)}"
                )
            if decision == "take":
                claim = LeaseClaim(
                    number=1 if last is None else last.number + 1,
                    token=secrets.token_hex(8),
                    owner=this_process(),
                    locked=locked is not False,
                )
                if self._made(claim):
                    if last is not None and not last.released:
                        self.taken_from = str(last.owner or "an unknown process")
                    self._remove_others(claim)
                    return claim

    def _watched(self, last: LeaseClaim, seen: Sight) -> Decision:
        """Watch the owner of the latest claim, and decide; "watch" if there is a new
        claim or this one was released."""
        watch = SilenceWatch(
            self._pace, now=time.monotonic(), beats=beats_of(self.directory, last)
        )
        who = "another process" if last.owner is None else str(last.owner)
        self._tell(
            f"{who} holds {self.directory} and"
            f" {'is stopped' if seen == 'stopped' else 'may be dead'}: looking for a"
            f" sign of life for up to {self._pace.silence:.0f} s"
        )
        decision: Decision = "watch"
        while decision == "watch":
            time.sleep(self._pace.look_seconds)
            now = latest_claim(self.directory)
            if now is None or now.token != last.token or now.released:
                return "watch"
            decision = watch.look(
                now=time.monotonic(), beats=beats_of(self.directory, last)
            )
        return decision

    def _made(self, claim: LeaseClaim) -> bool:
        """Make a claim, unless another process has that number or a higher one."""
        unseen = (self.directory / FOLDER) / f".{claim.number:06d}-{claim.token}.json"
        named = _file(self.directory, claim.number)
        text = json.dumps(asdict(claim))
        _folder(self.directory, claim).mkdir()
        try:
            unseen.write_text(text, encoding="utf-8")
            # ours after all, if a file server's answer was lost; see below
            with suppress(FileExistsError):
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
        last = latest_claim(self.directory)
        if last is not None and last.token == claim.token:
            return True
        with suppress(OSError):  # the claim's owner may have removed it
            _folder(self.directory, claim).rmdir()
        return False

    def _remove_others(self, claim: LeaseClaim) -> None:
        """Remove the files of earlier claims, beginning with the folders that their
        owners write into."""
        own = {
            _file(self.directory, claim.number).name,
            _folder(self.directory, claim).name,
        }
        for each in sorted(
            (self.directory / FOLDER).iterdir(), key=lambda path: not path.is_dir()
        ):
            number = each.name.lstrip(".")[:6]
            if each.name in own or not number.isdecimal() or int(number) > claim.number:
                continue
            if each.is_dir():
                _remove_folder(each, each.with_name(f".{each.name.lstrip('.')}"))
            else:
                each.unlink(missing_ok=True)

    def _beat(self) -> None:
        count = 0
        while not self._ended.wait(self._pace.beat_seconds):
            count += 1
            try:
                self._publish(str(count), f"{self._claim.number:06d}.beat")
            except FileNotFoundError:
                with suppress(LeaseLost, OSError):
                    self.folder_is_gone()
                return
            except OSError:  # a full disk, or an unreachable file server
                continue

    def _publish(self, text: str, name: str) -> None:
        made = self.folder / name
        made.write_text(text, encoding="utf-8")
        made.replace((self.directory / FOLDER) / name)

    def _lose(self, last: LeaseClaim | None) -> None:
        taker = (
            last.owner
            if last is not None and last.number != self._claim.number
            else None
        )
        what = "the lease is gone" if taker is None else f"{taker} has taken over"
        self._lost = LeaseLost(
            f"{self.directory}: {what}: this process ({self._claim.owner}) had given no"
            " sign of life for too long; it writes nothing more there, and what it had"
            " finished is kept"
        )


def _holder(last: LeaseClaim | None) -> str:
    """ ": process 7 on node-b", or nothing if no claim names it."""
    if last is None or last.released or last.owner is None:
        return ""
    return f": {last.owner}"


def latest_claim(directory: Path) -> LeaseClaim | None:
    """The claim with the highest number, without an owner if it cannot be read; None
    if there is none."""
    for _ in range(_LISTINGS):
        try:
            names = [
                name
                for name in os.listdir(directory / FOLDER)
                if name.endswith(".json") and name[:-5].isdecimal()
            ]
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not names:
            return None
        number = max(int(name[:-5]) for name in names)
        try:
            found = json.loads(_file(directory, number).read_bytes())
            return LeaseClaim(
                number=number,
                token=str(found["token"]),
                owner=Owner(**found["owner"]),
                locked=bool(found["locked"]),
                released=bool(found["released"]),
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


def beats_of(directory: Path, claim: LeaseClaim) -> int | None:
    """The number of beats from a claim's owner; None before the first."""
    with suppress(OSError, ValueError):
        return int(
            (directory / FOLDER / f"{claim.number:06d}.beat").read_text(
                encoding="ascii"
            )
        )
    return None


def _file(directory: Path, number: int) -> Path:
    return directory / FOLDER / f"{number:06d}.json"


def _folder(directory: Path, claim: LeaseClaim) -> Path:
    return directory / FOLDER / f"{claim.number:06d}-{claim.token}"


def _locked(file: IO[str]) -> bool | None:
    """Whether this process has the file lock; None if the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return None if error.errno in _NO_LOCKS else False
    return True


def _remove_folder(folder: Path, aside: Path) -> None:
    """Rename, then remove, a folder in which others may still write: their path
    becomes invalid at once."""
    with suppress(FileNotFoundError):
        folder.replace(aside)
    for _ in range(5):
        shutil.rmtree(aside, ignore_errors=True)
        if not aside.exists():
            return
        time.sleep(0.2)
