"""A directory changes hands between processes: what each of them can still write."""

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from evaluator.core import lease
from evaluator.core.errors import InputError
from evaluator.core.files import need_unfenced, write_atomically
from evaluator.core.lease import FOLDER, Claim, Lease, LeaseLost, claims
from evaluator.core.liveness import Owner, Pace, this_process
from tests.support.sweeps import refused

PACE = Pace(beat_seconds=0.02, missed=10, look_seconds=0.01)
QUIET = Pace(beat_seconds=3600.0)
ELSEWHERE = Owner(host="node-b", machine="node-b 1", pid=12, started="34")


def _lease(run: Path, pace: Pace = PACE) -> Lease:
    return Lease(run, pace=pace)


def _claimed(run: Path, number: int, owner: Owner) -> Path:
    """What a driver leaves that claimed a directory and was killed; where it made
    its files."""
    claim = Claim(**asdict(owner), number=number, token="ab")
    folder = run / FOLDER / f"{number:06d}-ab"
    folder.mkdir(parents=True)
    (run / FOLDER / f"{number:06d}.json").write_text(json.dumps(asdict(claim)))
    return folder


def _dead() -> Owner:
    ended = subprocess.Popen(["true"])
    ended.wait()
    return replace(this_process(), pid=ended.pid)


def _names(run: Path) -> list[str]:
    return sorted(each.name for each in (run / FOLDER).iterdir())


def test_released_directory_is_taken_again(tmp_path: Path) -> None:
    first = _lease(tmp_path, QUIET)
    write_atomically(tmp_path / "tables" / "a.csv", b"a")
    assert (
        "another resurface process is writing this run directory: process"
        f" {os.getpid()}" in refused(_lease, tmp_path)
    )
    first.release()
    first.release()
    assert [each.name for each in tmp_path.iterdir()] == ["tables"]
    second = _lease(tmp_path, QUIET)
    (claim,) = claims(tmp_path)
    assert claim == Claim(**asdict(this_process()), number=1, token=claim.token)
    assert _names(tmp_path) == ["000001-" + claim.token, "000001.json"]
    first.release()
    second.check()
    second.release()
    assert (tmp_path / "tables" / "a.csv").read_bytes() == b"a"


def test_dead_local_owner_is_replaced(tmp_path: Path) -> None:
    folder = _claimed(tmp_path, 7, _dead())
    (folder / "3.writing").write_bytes(b"half")
    told: list[str] = []
    held = Lease(tmp_path, tell=told.append, pace=QUIET)
    assert not folder.exists()
    assert _names(tmp_path) == [held.folder.name, "000008.json"]
    assert held.taken_from.startswith("process ")
    assert told == []
    held.release()


@pytest.mark.parametrize("damage", [Path.mkdir, Path.touch])
def test_claim_that_nobody_wrote(tmp_path: Path, monkeypatch, damage) -> None:
    """Its process was killed, or never heard from the file server that it has it."""
    slept = Mock()
    monkeypatch.setattr(
        lease, "time", SimpleNamespace(sleep=slept, monotonic_ns=time.monotonic_ns)
    )
    (tmp_path / FOLDER).mkdir()
    damage(tmp_path / FOLDER / "000007.json")
    held = Lease(tmp_path, pace=Pace(beat_seconds=3600.0, look_seconds=600.0))
    assert held.folder.name.startswith("000008-")
    assert _names(tmp_path) == [held.folder.name, "000008.json"]
    assert [each.args for each in slept.call_args_list].count((600.0,)) == 30
    held.release()


def test_claim_that_is_being_written(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "000001.json").touch()
    owner = Claim(**asdict(this_process()), number=1, token="ab")
    text = json.dumps(asdict(owner))
    write = threading.Timer(0.5, (tmp_path / FOLDER / "000001.json").write_text, [text])
    write.start()
    assert f"process {os.getpid()} on" in refused(_lease, tmp_path, QUIET)
    write.join()


def test_full_disk_leaves_no_claim(tmp_path: Path, monkeypatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    for target, name in ((lease.json, "dump"), (lease.os, "listdir")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, Mock(side_effect=full))
            with pytest.raises(OSError, match="No space"):
                _lease(tmp_path)
        assert not [*tmp_path.iterdir()]
    _lease(tmp_path).release()


def test_taking_over_at_once(tmp_path: Path) -> None:
    """From another machine. An owner here is refused as ever."""
    folder, told = _claimed(tmp_path, 7, ELSEWHERE), Mock()
    held = Lease(tmp_path, tell=told, take_over=True, pace=QUIET)
    assert held.taken_from == "process 12 on node-b"
    assert not folder.exists()
    assert not told.called
    again = partial(Lease, tmp_path, take_over=True)
    assert f"process {os.getpid()} on" in refused(again)
    held.release()


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock jumps by a day, forwards or backwards, whenever somebody looks at
    it."""
    real, jumps = time.time, itertools.cycle((0.0, 86400.0, -86400.0))
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))


def _touched(file: Path, hours: int) -> None:
    """As a file server whose clock is so far off says when a file was written."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(file, (time.monotonic() + 3600 * hours,) * 2)


@pytest.mark.usefixtures("jumping")
@pytest.mark.parametrize("hours", [-24, 24])
def test_living_owner_with_wrong_clocks(
    tmp_path: Path, monkeypatch, hours: int
) -> None:
    """Another one that sees its files alone, not its process, finds its beats."""
    held = _lease(tmp_path)
    monkeypatch.setattr(lease, "sight", lambda owner: "elsewhere")
    beat = held.folder / "beat"
    for _ in range(3):
        with pytest.raises(InputError, match="another resurface process is writing"):
            Lease(
                tmp_path,
                tell=lambda text: _touched(beat, hours),
                pace=replace(PACE, missed=10_000),
            )
        held.check()
        write_atomically(tmp_path / "records" / "a.parquet", b"a")
    held.release()


@pytest.mark.usefixtures("jumping")
@pytest.mark.parametrize("hours", [-24, 24])
def test_silent_owner_with_wrong_clocks(tmp_path: Path, hours: int) -> None:
    """Its last beat looks as if it came tomorrow, or yesterday; and it may write
    nothing more."""
    old = _lease(tmp_path, QUIET)
    folder = old.folder
    claim = json.loads((tmp_path / FOLDER / "000001.json").read_text())
    (tmp_path / FOLDER / "000001.json").write_text(
        json.dumps(claim | asdict(ELSEWHERE))
    )
    (folder / "beat").write_text("7")
    _touched(folder / "beat", hours)
    new = _lease(tmp_path)
    assert not folder.exists()
    assert new.taken_from == "process 12 on node-b"
    with pytest.raises(LeaseLost):
        old.check()
    new.check()
    old.release()
    new.release()


def test_waiter_takes_released_directory(tmp_path: Path) -> None:
    folder = _claimed(tmp_path, 7, ELSEWHERE)
    (folder / "beat").write_text("7")

    def give_back() -> None:
        (tmp_path / FOLDER / "000007.json").rename(folder / "000007.json")
        shutil.rmtree(folder)

    told = Mock(side_effect=lambda text: threading.Timer(0.2, give_back).start())
    held = Lease(tmp_path, tell=told, pace=Pace(look_seconds=0.01))
    assert held.folder.name.startswith("000001-")
    assert held.taken_from == ""
    assert told.call_args.args[0].endswith("a sign of life for up to 25 s")
    held.release()


def test_paused_owner_writes_nothing(tmp_path: Path) -> None:
    """Taken over between any two of its steps: before it writes, and after it has
    written but not renamed."""
    old = _lease(tmp_path, QUIET)
    part = tmp_path / "records" / "a.parquet"
    write_atomically(part, b"old")
    with (old.folder / "half.writing").open("wb") as half:  # paused here
        half.write(b"late")
        _, paused = _take_over(tmp_path), half.name
    with pytest.raises(FileNotFoundError):
        os.replace(paused, part)
    for write in (
        lambda: write_atomically(part, b"new"),
        lambda: need_unfenced(part),
        old.check,
        old.need_unlost,
    ):
        with pytest.raises(
            LeaseLost,
            match=r"node-b has taken over: this process .* writes nothing more",
        ):
            write()
    assert part.read_bytes() == b"old"
    old.release()
    assert claims(tmp_path)[-1].host == "node-b"
    write_atomically(tmp_path / "elsewhere.txt", b"nobody's")  # no fence is left behind


def _take_over(run: Path) -> None:
    """What another driver does that has seen this one's claim expire."""
    (last,) = claims(run)
    shutil.rmtree(run / FOLDER / f"{last.number:06d}-{last.token}")
    (run / FOLDER / f"{last.number:06d}.json").unlink()
    _claimed(run, last.number + 1, ELSEWHERE)


def test_lost_folder_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may still show the old claim to the machine that was cut
    off."""
    old = _lease(tmp_path, QUIET)
    found = claims(tmp_path)
    _take_over(tmp_path)
    monkeypatch.setattr(lease, "claims", lambda run_dir: found)
    with pytest.raises(LeaseLost, match="the lease is gone"):
        write_atomically(tmp_path / "run.json", b"{}")
    old.release()


def test_stopped_local_owner_loses_its_lease(tmp_path: Path) -> None:
    """Though it lives, and with `take_over` too only when it was silent for long."""
    code = f"""
import time
from pathlib import Path
from evaluator.core.liveness import Pace
from evaluator.core.lease import Lease
held = Lease(Path({str(tmp_path)!r}), pace=Pace(beat_seconds=0.02))
print("held", flush=True)
while True:
    held.need_unlost()
    time.sleep(0.01)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout.readline() == "held\n"
    assert f"process {owner.pid} on" in refused(_lease, tmp_path)
    owner.send_signal(signal.SIGSTOP)
    while (
        Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
    ):
        time.sleep(0.01)
    told: list[str] = []
    second = Lease(tmp_path, tell=told.append, take_over=True, pace=PACE)
    assert len(told) == 1
    assert f"process {os.getpid()} on" in refused(_lease, tmp_path)
    second.release()
    third = _lease(tmp_path)
    owner.send_signal(signal.SIGCONT)
    _, error = owner.communicate()
    assert owner.returncode == 1
    assert f"LeaseLost: {tmp_path}: process {os.getpid()} on" in error
    third.check()
    third.release()


@pytest.mark.parametrize("first", [True, False])
def test_one_of_many_claimants_wins(tmp_path: Path, first: bool) -> None:
    if not first:
        _claimed(tmp_path, 3, _dead())
    ready = threading.Barrier(8)

    def take(_: int) -> Lease | None:
        ready.wait()
        try:
            return _lease(tmp_path, QUIET)
        except InputError:
            return None

    with ThreadPoolExecutor(8) as pool:
        (got,) = filter(None, pool.map(take, range(8)))
    got.check()
    got.release()


def test_link_to_another_file_system(tmp_path: Path, monkeypatch) -> None:
    held = _lease(tmp_path, QUIET)
    rename = Path.replace

    def across(self: Path, target: Path) -> Path:
        if self.parent != Path(target).parent:
            raise OSError(errno.EXDEV, "another device")
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", across)
        write_atomically(tmp_path / "records" / "a", b"a")
        assert (tmp_path / "records" / "a").read_bytes() == b"a"
        _take_over(tmp_path)
        with pytest.raises(LeaseLost):
            write_atomically(tmp_path / "records" / "a", b"b")
    held.release()
    assert [each.name for each in (tmp_path / "records").iterdir()] == ["a"]


def test_foreign_files_are_no_claims(tmp_path):
    lease = Lease(tmp_path)
    (tmp_path / FOLDER / "9abc.json").write_text("{")
    assert [claim.number for claim in claims(tmp_path)] == [1]
    lease.release()
    Lease(tmp_path).release()
