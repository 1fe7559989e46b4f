"""One process at a time writes a directory, on any file system. A process that lost
the directory cannot write there. Runs and compression jobs use it.

`DIR/.lease/000007.json` is a claim. `000007-<token>/` is the folder where its owner
makes every file before the file gets its name, and counts up its beat. Both are gone
once the owner has given the directory back.

1. A process that wants the directory judges all claims: has their owner ended?
2. It creates the claim with the next number, which only one process can, and a folder.
3. It looks again. If there is a claim that it has not judged, it removes its own and
   begins again.
4. It removes all other folders and claims. Now it may write.

Of two processes that came to step 4, one made its folder before the other one looked,
and so lost it. Without a folder it has no file left to rename. There is no gap between
check and write. What it renamed before counts as finished. Nobody removes a claim but
by moving it into the own folder: numbers are used again, so one that lost the directory
must not touch them.
"""

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from glob import glob
from pathlib import Path

from evaluator.core.errors import InputError, ResurfaceError
from evaluator.core.files import fence, lift_fence
from evaluator.core.liveness import Owner, Pace, sight, this_process

FOLDER = ".lease"
PACE = Pace()


class Held(InputError):
    """Another process writes the directory."""


class LeaseLost(ResurfaceError):
    """Another process has taken over the directory; this one must not write there any
    more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Owner):
    number: int = 0
    token: str = ""  # no other claim has it


class Lease:
    """Held by the one process that writes a directory. However that process ends,
    another can take the directory afterwards."""

    def __init__(
        self,
        directory: Path,
        *,
        content: str = "run directory",
        tell: Callable[[str], None] | None = None,
        take_over: bool = False,
        pace: Pace | None = None,
    ) -> None:
        """`content`: what the directory holds, for messages. `take_over`: from another
        machine at once. Raises Held if another process writes there, OSError if the
        directory is not writable."""
        self.directory = directory
        self._content, self._take_over = content, take_over
        self._tell, self._pace = tell or (lambda text: None), pace or PACE
        self.taken_from = ""  # the process that had not given the directory back
        self._lost: LeaseLost | None = None
        self._claim = Claim(**asdict(this_process()))
        try:
            self._take()
        except BaseException:
            self._leave()
            raise
        fence(directory, self)
        self._ended = threading.Event()
        self._beating = threading.Thread(
            target=self._beat, name="lease-beat", daemon=True
        )
        self._beating.start()

    @property
    def folder(self) -> Path:
        """Where this process makes each file before the file gets its name. Gone once
        the lease is lost."""
        return beat_file(self.directory, self._claim).parent

    def check(self) -> None:
        """Give a sign of life. Raises LeaseLost if another process has taken over the
        directory: only such a process removes the folder."""
        try:
            beat_file(self.directory, self._claim).write_text(str(time.monotonic_ns()))
        except FileNotFoundError:
            others = [each for each in claims(self.directory) if each != self._claim]
            what = f"{others[-1]} has taken over" if others else "the lease is gone"
            self._lost = self._lost or LeaseLost(
                f"{self.directory}: {what}: this process ({self._claim}) had given no"
                " sign of life for too long, or was taken over on purpose; it writes"
                " nothing more there, and what it had finished is kept"
            )
        except OSError:  # a full disk, or an unreachable file server
            pass
        self.need_unlost()

    def need_unlost(self) -> None:
        """Raises LeaseLost if the loss is known already. Reads no file; the
        knowledge is at most one beat old."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Give the directory back without a trace; does nothing if it is lost."""
        self._ended.set()
        self._beating.join()
        lift_fence(self.directory, self)
        self._leave()

    def _take(self) -> None:
        while True:
            with suppress(FileExistsError):
                (self.directory / FOLDER).mkdir()
            # another process was faster, or gave the directory back
            with suppress(FileExistsError, FileNotFoundError):
                judged = claims(self.directory)
                for claim in judged:
                    self._need_over(claim)
                return self._make(judged)
            self._leave()
            time.sleep(self._pace.look_seconds)

    def _need_over(self, claim: Claim) -> None:
        """Raises Held, unless a claim's owner has ended or is silent;
        FileNotFoundError if the claim is gone."""
        seen = sight(claim)
        if seen == "gone" or (seen == "elsewhere" and self._take_over):
            return
        if seen != "running":
            self._tell(
                f"{claim} holds {self.directory} and"
                f" {'is stopped' if seen == 'stopped' else 'may be dead'}: looking for"
                f" a sign of life for up to {self._pace.silence:.0f} s"
            )
            first = beat_of(self.directory, claim)
            # Counted in looks: a process that is paused itself hears nothing.
            for _ in range(round(self._pace.silence / self._pace.look_seconds)):
                time.sleep(self._pace.look_seconds)
                if beat_of(self.directory, claim) != first:
                    break
            else:
                return
        if claim not in claims(self.directory):
            raise FileNotFoundError
        raise Held(
            f"{self.directory}: another resurface process is writing this"
            f" {self._content}: {claim}"
        )

    def _make(self, judged: list[Claim]) -> None:
        """Raises FileExistsError if there is a claim beside those that are over."""
        number = judged[-1].number + 1 if judged else 1
        claim = replace(self._claim, number=number, token=secrets.token_hex(8))
        file = _file(self.directory, claim)
        try:
            with file.open("x", encoding="utf-8") as handle:
                self._claim = claim
                json.dump(asdict(claim), handle)
            self.folder.mkdir()
        except BaseException:
            if self._claim == claim:  # a full disk: leave nothing half-written
                file.unlink(missing_ok=True)
            raise
        names = os.listdir(file.parent)
        now = claims(self.directory)
        if [each for each in now if each not in judged] != [claim]:
            raise FileExistsError
        for name in sorted({*names} - {file.name, self.folder.name}):
            with suppress(FileNotFoundError):
                (file.parent / name).replace(self.folder / name)
            _remove(self.folder / name)
        self.taken_from = ", ".join(map(str, now[:-1]))

    def _leave(self) -> None:
        """Remove the own claim and folder."""
        file = _file(self.directory, self._claim)
        with suppress(OSError):
            if self._claim in claims(self.directory):
                file.replace(self.folder / file.name)
        _remove(self.folder)
        with suppress(OSError):  # others have claims there
            file.parent.rmdir()

    def _beat(self) -> None:
        with suppress(LeaseLost, OSError):
            while not self._ended.wait(self._pace.beat_seconds):
                self.check()


def claims(directory: Path) -> list[Claim]:
    """All claims, the latest last."""
    place = directory / FOLDER
    files = [place / name for name in sorted(glob("[0-9]*.json", root_dir=place))]
    found = [_read(file) for file in files if file.stem.isdecimal()]
    return [claim for claim in found if claim is not None]


def beat_of(directory: Path, claim: Claim) -> bytes | None:
    """Another one after each sign of life of the claim's owner."""
    with suppress(OSError):
        return beat_file(directory, claim).read_bytes()
    return None


def beat_file(directory: Path, claim: Claim) -> Path:
    return directory / FOLDER / f"{claim.number:06d}-{claim.token}" / "beat"


def _file(directory: Path, claim: Claim) -> Path:
    return directory / FOLDER / f"{claim.number:06d}.json"


def _read(file: Path) -> Claim | None:
    """None: it is gone. A claim that cannot be read may be written at this moment;
    after two seconds, its owner is unknown."""
    for _ in range(20):
        try:
            return Claim(**json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            time.sleep(0.1)
    where = "an unknown machine"
    return Claim(host=where, machine="", pid=0, started="", number=int(file.stem))


def _remove(folder: Path) -> None:
    """Remove a folder in which others may still write."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.is_dir():
            time.sleep(0.2)
