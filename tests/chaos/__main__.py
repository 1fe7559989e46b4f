"""Random kills, one after another, of everything that a run is made of; afterwards its records are as undisturbed.

python -m tests.chaos --kills 100 --seed 0

Driver, engine, prune task, raylet, GCS and any other process of a local Ray are killed (-9) at random moments, and
engines are paused for some seconds. Whatever ends the command, the same command is given again, until the run has
finished; then the next run begins. A command is struck within the time that the quickest whole run so far took.
Real vLLM, real Ray, a tiny model: about half a minute a kill on two cores.
"""

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from tests.support.kills import ENGINE, PRUNING, Desk, check_same, family, of_ray
from tests.support.runs import records

_PAUSE_SECONDS = (1.0, 20.0)
_ENDS = {0: "finished", 1: "failed", 3: "finished with failures", 130: "interrupted", -signal.SIGKILL: "killed"}
Victims = Mapping[str, Callable[[subprocess.Popen[bytes]], list[psutil.Process]]]


VICTIMS: Victims = {
    "driver": lambda driver: [psutil.Process(driver.pid)] if driver.poll() is None else [],
    "engine": lambda driver: family(driver, ENGINE),
    "engine, paused": lambda driver: family(driver, ENGINE),
    "prune task": lambda driver: family(driver, PRUNING),
    "raylet": lambda driver: of_ray(driver, "raylet"),
    "GCS": lambda driver: of_ray(driver, "gcs_server"),
    "any process": family,
}


class Chaos:
    """One kill after another, drawn from a seed; `told` counts what was hit and how the command then ended."""

    def __init__(self, desk: Desk, *, kills: int, seed: int, seconds: float) -> None:
        """`seconds`: how long a command takes that nothing disturbs."""
        self.kills = kills
        self.hit: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._desk = desk
        self._seconds = seconds
        self._draw = random.Random(seed)

    def run(self, directory: Path) -> None:
        """One run to its end, disturbed as long as there are kills left."""
        began = time.monotonic()
        for tries in itertools.count(1):
            sweep = self._desk.sweep(shard_items=self._draw.choice((1, 3, 5)), engines=self._draw.choice((1, 2)))
            driver = self._desk.start(sweep, directory)
            while driver.poll() is None and self.hit.total() < self.kills:
                self._wait(driver, self._draw.uniform(0, self._seconds))
                self._strike(driver)
            code = driver.wait()
            self.ended[_ENDS.get(code, f"exit {code}")] += 1
            if code == 0 and tries == 1:
                self._seconds = min(self._seconds, time.monotonic() - began)
            if code == 0:
                return
            assert code in _ENDS, self._desk.log(directory).read_text()
            assert "Traceback" not in self._desk.log(directory).read_text(), self._desk.log(directory).read_text()

    def _wait(self, driver: subprocess.Popen[bytes], seconds: float) -> None:
        until = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < until:
            time.sleep(0.02)

    def _strike(self, driver: subprocess.Popen[bytes]) -> None:
        there = {name: found for name, find in VICTIMS.items() if (found := find(driver))}
        if not there:
            return
        name = self._draw.choice(sorted(there))
        victim = self._draw.choice(there[name])
        try:
            if name == "engine, paused":
                os.kill(victim.pid, signal.SIGSTOP)
                self._wait(driver, self._draw.uniform(*_PAUSE_SECONDS))
                os.kill(victim.pid, signal.SIGCONT)
            else:
                victim.kill()
        except (ProcessLookupError, psutil.NoSuchProcess):  # it was quicker
            return
        self.hit[name] += 1
        print(f"{self.hit.total():4} of {self.kills}: {name}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="resurface-chaos-", ignore_cleanup_errors=True) as folder:
        desk = Desk(Path(folder))
        began = time.monotonic()
        undisturbed = Path(folder) / "undisturbed"
        desk.finish(desk.sweep(), undisturbed)
        seconds = time.monotonic() - began
        expected, runs = records(undisturbed), 0
        chaos = Chaos(desk, kills=given.kills, seed=given.seed, seconds=seconds)
        print(f"undisturbed: {len(expected)} records in {seconds:.0f} s", flush=True)
        while chaos.hit.total() < given.kills:
            runs += 1
            disturbed = Path(folder) / f"run-{runs}"
            chaos.run(disturbed)
            check_same(disturbed, expected)
            print(f"run {runs}: {len(expected)} records as undisturbed, none lost, none twice", flush=True)
    for title, counted in (("killed", chaos.hit), ("commands that", chaos.ended)):
        print(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counted.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
