"""Processes that want one directory, in every order of their steps on its files: some
are killed or paused between any two, disks are full and file servers' answers get lost.

A thread stands for a process. One at a time makes a step; a seed decides which.
"""

import errno
import itertools
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluator.core import lease
from evaluator.core.lease import FOLDER, Claim, Held, Lease, LeaseLost, claims
from evaluator.core.liveness import Owner, Pace

SIX_LOOKS = Pace(beat_seconds=3600.0, missed=1, look_seconds=600.0)
_own = threading.local()


class _Killed(BaseException):
    pass


class _Process:
    """Takes the directory, writes there and gives it back, several times."""

    def __init__(self, world: "_World", pid: int, machine: str) -> None:
        self.world = world
        self.owner = Owner(host=machine, machine=machine, pid=pid, started="")
        self.state, self.was_stopped = "running", False
        self.go = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def step(self) -> None:
        if self.state != "gone":
            self.world.came.release()
            self.go.acquire()
        if self.state == "gone":
            raise _Killed

    def _run(self) -> None:
        _own.process = self
        self.go.acquire()
        try:
            for _ in range(3):
                self._work()
        except _Killed:
            return
        self.state = "gone"
        self.world.came.release()

    def _work(self) -> None:
        run, random = self.world.run, self.world.random
        try:
            held = Lease(run, pace=SIX_LOOKS, take_over=random.random() < 0.2)
        except Held:
            self.world.refused += 1
            return
        except OSError as error:
            self.world.full += error.errno == errno.ENOSPC
            return
        paused = self.was_stopped
        try:
            for _ in range(random.randrange(1, 4)):
                made = held.folder / "made"
                made.write_text("")
                made.replace(run / "written")
                self.world.writers.append(held.folder.name)
                held.check()
        except FileNotFoundError:
            with pytest.raises(LeaseLost):
                held.check()
            self.world.robbed += [self] * (not paused and not self.was_stopped)
        except LeaseLost:
            self.world.robbed += [self] * (not paused and not self.was_stopped)
        held.release()


class _World:
    def __init__(self, run: Path, seed: int, machines: int) -> None:
        self.run, self.random = run, random.Random(seed)
        self.came = threading.Semaphore(0)
        self.writers: list[str] = []
        self.robbed: list[_Process] = []
        self.refused = self.full = 0
        self.processes = [
            _Process(self, pid, f"node-{pid % machines}") for pid in range(5)
        ]

    def play(self) -> None:
        draw = self.random
        calm, harm = draw.choice((0.0, 0.5, 0.95)), draw.choice((0.0, 0.003, 0.02))
        process = slow = self.processes[0]
        while living := [each for each in self.processes if each.state != "gone"]:
            if draw.random() < harm:
                victim = draw.choice(living)
                victim.state = draw.choice(("gone", "stopped", "stopped"))
                victim.was_stopped = True
            if draw.random() < 0.01:
                slow = draw.choice(self.processes)
            stopped = [each for each in living if each.state == "stopped"]
            ready = [each for each in living if each.state == "running"]
            if stopped and (not ready or draw.random() < 0.02):
                draw.choice(stopped).state = "running"
            elif ready:
                if process not in ready or draw.random() >= calm:
                    swift = [each for each in ready if each is not slow]
                    process = draw.choice(swift or ready)
                process.go.release()
                assert self.came.acquire(timeout=10)

    def end(self) -> None:
        for each in self.processes:
            each.state = "gone"
            each.go.release()
            each.thread.join()

    def sight(self, claim: Claim) -> str:
        if not claim.machine:
            return "elsewhere"
        here = getattr(_own, "process", self.processes[claim.pid]).owner.machine
        if claim.machine != here:
            return "elsewhere"
        return self.processes[claim.pid].state


def _step() -> None:
    process = getattr(_own, "process", None)
    if process is not None:
        process.step()


def _by_steps(world: _World, patched: pytest.MonkeyPatch) -> None:
    """A step before everything that the lease does to files."""
    for target, name in (
        *((Path, name) for name in ("mkdir", "replace", "unlink", "rmdir", "is_dir")),
        *((lease, "glob"), (lease.os, "listdir"), (lease.shutil, "rmtree")),
    ):
        real = getattr(target, name)

        def stepping(*given, real=real, **options):
            _step()
            return real(*given, **options)

        patched.setattr(target, name, stepping)
    open_, dump = Path.open, lease.json.dump

    def opened(path: Path, mode: str = "r", *given, **options):
        _step()
        file = open_(path, mode, *given, **options)
        if mode == "x" and world.random.random() < 0.03:
            file.close()
            raise FileExistsError  # the answer was lost, and the server asked again
        return file

    def dumped(*given) -> None:
        _step()
        if world.random.random() < 0.03:
            raise OSError(errno.ENOSPC, "No space left on device")
        dump(*given)

    patched.setattr(Path, "open", opened)
    patched.setattr(lease.json, "dump", dumped)
    clock = SimpleNamespace(
        sleep=lambda seconds: _step(), monotonic_ns=time.monotonic_ns
    )
    patched.setattr(lease, "time", clock)
    patched.setattr(lease, "sight", world.sight)
    patched.setattr(lease, "this_process", lambda: _own.process.owner)
    patched.setattr(Lease, "_beat", lambda self: None)


@pytest.mark.parametrize("machines", [1, 3])
@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(6, 2000), marks=pytest.mark.long)]
)
def test_at_most_one_writes(tmp_path: Path, monkeypatch, seeds, machines: int) -> None:
    """Once another one has written, its predecessor writes nothing more. On one
    machine, nobody who was never stopped loses the directory. After all have ended, it
    is free, and without a trace."""
    refused = writers = 0
    for seed in seeds:
        run = tmp_path / str(seed)
        run.mkdir()
        world = _World(run, seed, machines)
        with monkeypatch.context() as patched:
            _by_steps(world, patched)
            try:
                world.play()
            finally:
                world.end()
        turns = [name for name, _ in itertools.groupby(world.writers)]
        assert len(turns) == len({*turns}), f"seed {seed}"
        assert machines > 1 or not world.robbed, f"seed {seed}"
        with monkeypatch.context() as patched:
            patched.setattr(lease, "sight", lambda claim: "gone")
            Lease(run).release()
        assert not (run / FOLDER).exists(), f"seed {seed}"
        refused, writers = refused + world.refused, writers + len(turns)
    assert min(refused, writers) > len(seeds)


WORKER = """
import random, sys, time
from pathlib import Path
from evaluator.core import liveness
from evaluator.core.files import write_atomically
from evaluator.core.lease import Held, Lease, LeaseLost
from evaluator.core.liveness import Pace

run, seed, machine = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if machine:
    liveness._machine = lambda: machine
draw = random.Random(seed)
while True:
    try:
        held = Lease(run, pace=Pace(beat_seconds=0.05, look_seconds=0.02))
    except Held:
        time.sleep(0.02)
        continue
    wrote = ""
    try:
        for number in range(draw.randrange(1, 30)):
            found = (run / "written").read_text() if wrote else ""
            write_atomically(run / "written", f"{held.folder} {number}".encode())
            if found != wrote:
                sys.exit(f"{held.folder} wrote after {found}")
            wrote = f"{held.folder} {number}"
            time.sleep(draw.random() * 0.01)
        print("gave back", flush=True)
    except LeaseLost:
        print("lost", flush=True)
    held.release()
"""


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_processes_are_killed_and_paused(tmp_path: Path, seed: int) -> None:
    """Real ones, on one machine and as if on others."""
    run, draw, begun = tmp_path / "run", random.Random(seed), itertools.count()
    run.mkdir()

    def begin() -> subprocess.Popen:
        number = next(begun)
        log = (tmp_path / f"{number}.log").open("w")
        typed = [str(run), str(seed + number), draw.choice(("", "b", "c"))]
        with log:
            return subprocess.Popen(
                [sys.executable, "-c", WORKER, *typed], stdout=log, stderr=log
            )

    workers = [begin() for _ in range(5)]
    until = time.monotonic() + 30
    try:
        while time.monotonic() < until:
            time.sleep(draw.random() * 0.2)
            holders = {each.pid for each in claims(run)}
            found = [each for each in workers if each.pid in holders]
            victim = draw.choice(found or workers)
            if draw.random() < 0.3:
                victim.kill()
                victim.wait()
                workers[workers.index(victim)] = begin()
            else:
                victim.send_signal(signal.SIGSTOP)
                wake = (victim.send_signal, [signal.SIGCONT])
                threading.Timer(draw.random(), *wake).start()
    finally:
        for each in workers:
            each.kill()
            each.wait()
    said = [log.read_text() for log in tmp_path.glob("*.log")]
    assert {*"".join(said).splitlines()} == {"gave back", "lost"}
    Lease(run, pace=Pace(beat_seconds=0.05, look_seconds=0.02)).release()
    assert not (run / FOLDER).exists()
