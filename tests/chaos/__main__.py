"""Random disturbances, one after another, of everything that a run is made of; its
records and tables stay the same.

python -m tests.chaos --kills 100 --seed 0
python -m tests.chaos --night --kills 10

Driver, engine, prune task, raylet, GCS and any other process of a local Ray are killed
(-9) at random moments, and engines are paused for some seconds. A driver gets SIGTERM
or SIGINT while an engine evaluates, and a second driver beside it. Every third run is
on a disk of its own, which becomes full or read-only; every third one is on a Ray
cluster whose second node is lost and joins.
Whatever ends the command, the same command is given again, until the run has
finished; then the next run begins. Between two strikes passes at most half the time of
the quickest whole run so far. Real vLLM, real Ray, a tiny model: half a minute a kill
on two cores. `--night`: the recipe `two_models` on two nodes; its event log must tell of
every kill.
"""

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Set
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.chaos.night import Night, check_night, check_story
from tests.support.kills import (
    ENGINE,
    PRUNING,
    Desk,
    check_same,
    check_tables,
    family,
    of_ray,
    tables,
)
from tests.support.ray_nodes import RayNodes, ray_cluster
from tests.support.runs import records

_PAUSE_SECONDS, _DISK_SECONDS = (1.0, 20.0), (0.5, 10.0)
_CPUS = {"num_cpus": 4}  # of a node
# one of so many strikes waits until an engine evaluates, which may take few seconds of
# a run
_EVALUATING = 3
_TASKS = 2  # which share an engine's stream
_ENDS = {
    0: "finished",
    1: "failed",
    3: "finished with failures",
    130: "interrupted",
    -15: "stopped",
    -9: "killed",
}
_REFUSED = 2  # the exit code of a driver that cannot write, for these reasons:
_REFUSING = {"full disk", "read-only disk", "second driver"}
_AT_NIGHT = {"driver", "engine", "prune task", "SIGTERM", "node lost", "node joins"}
Driver = subprocess.Popen[bytes]


class Place(NamedTuple):
    """Where the commands of a run work."""

    run: Path
    disk: Path | None = None  # one that can be full and read-only
    nodes: RayNodes | None = None

    def family(self, driver: Driver, title: str) -> list[psutil.Process]:
        """The living processes of a command with this title."""
        roots = [driver] if self.nodes is None else self.nodes.raylets()
        return [each for root in roots for each in family(root, title)]


class Chaos:
    """One disturbance after another, drawn from a seed; `struck` names them, and
    `ended` how the commands ended."""

    def __init__(
        self,
        desk: Desk,
        *,
        kills: int,
        seed: int,
        seconds: float,
        only: Set[str] | None = None,
    ) -> None:
        """`seconds`: how long a command takes that nothing disturbs; `only` these
        disturbances, None: all."""
        self.kills, self._desk, self._seconds, self._only = kills, desk, seconds, only
        self.struck: list[tuple[datetime, str]] = []
        self.ended: Counter[str] = Counter()
        self._draw = random.Random(seed)

    def run(self, place: Place) -> None:
        """One run to its end, disturbed as long as there are kills left."""
        began = time.monotonic()
        # it accepts, and nobody reads
        for tries in itertools.count(1):
            code = self._command(place)
            if code == 0 and tries == 1:
                self._seconds = min(self._seconds, time.monotonic() - began)
            if code == 0:
                return

    def _command(self, place: Place) -> int:
        """The exit code of one command."""
        sweep = self._desk.sweep(
            shard_items=self._draw.choice((1, 3, 5)),
            engines=self._draw.choice((1, 2)),
            tasks=_TASKS,
        )
        variables = {} if place.nodes is None else {"RAY_ADDRESS": place.nodes.address}
        second = partial(self._second, sweep, place, dict(variables))
        driver, before = (
            self._desk.start(sweep, place.run, variables=variables),
            len(self.struck),
        )
        while driver.poll() is None and len(self.struck) < self.kills:
            self._wait(driver, self._draw.uniform(0, self._seconds / 2))
            if not self._draw.randrange(_EVALUATING):
                while driver.poll() is None and not place.family(
                    driver, f"{ENGINE}.evaluate"
                ):
                    self._wait(driver, 0.2)
            with contextlib.suppress(
                ProcessLookupError, psutil.NoSuchProcess, subprocess.CalledProcessError
            ):
                there = self._strikes(driver, place) | {"second driver": second}
                names = sorted(
                    there if self._only is None else there.keys() & self._only
                )
                if names and driver.poll() is None:
                    name, when = self._draw.choice(names), datetime.now(UTC)
                    there[name]()
                    self._note(name, when)  # else it was quicker
        code, text = driver.wait(), self._desk.log(place.run).read_text()
        refused = code == _REFUSED and _REFUSING & {
            name for _, name in self.struck[before:]
        }
        assert code in _ENDS or refused, text
        assert "Traceback" not in text, text
        self.ended[_ENDS.get(code, "refused")] += 1
        return code

    def _note(self, name: str, when: datetime) -> None:
        self.struck.append((when, name))
        print(f"{len(self.struck):4} of {self.kills}: {name}", flush=True)

    def _wait(self, driver: Driver, seconds: float) -> None:
        until = time.monotonic() + seconds
        while driver.poll() is None and time.monotonic() < until:
            time.sleep(0.02)

    def _strikes(self, driver: Driver, place: Place) -> dict[str, Callable[[], None]]:
        """What can be done now, by name."""
        local, engines = place.nodes is None, place.family(driver, ENGINE)
        groups = {
            "driver": [psutil.Process(driver.pid)],
            "engine": engines,
            "prune task": place.family(driver, PRUNING),
            "raylet": of_ray(driver, "raylet") if local else [],
            "GCS": of_ray(driver, "gcs_server") if local else [],
            "any process": family(driver),
        }
        found: dict[str, Callable[[], None]]
        found = {
            name: self._draw.choice(group).kill
            for name, group in groups.items()
            if group
        }
        if place.family(driver, f"{ENGINE}.evaluate"):
            found |= {
                each.name: partial(driver.send_signal, each)
                for each in (signal.SIGTERM, signal.SIGINT)
            }
        if engines:
            found["engine, paused"] = partial(
                self._pause, driver, self._draw.choice(engines)
            )
        if place.disk is not None and place.run.exists():
            wait = partial(self._wait, driver, self._draw.uniform(*_DISK_SECONDS))
            found |= {
                "full disk": partial(_fill, place.disk, wait),
                "read-only disk": partial(_lock, place.run, wait),
            }
        if (nodes := place.nodes) is not None and len(nodes) > 1:
            found["node lost"] = lambda: nodes.kill(len(nodes) - 1)
        elif nodes is not None:
            found["node joins"] = lambda: nodes.add(
                self._desk.directory / "other", _CPUS
            )
        return found

    def _pause(self, driver: Driver, engine: psutil.Process) -> None:
        engine.suspend()
        self._wait(driver, self._draw.uniform(*_PAUSE_SECONDS))
        engine.resume()

    def _second(self, sweep: Path, place: Place, variables: dict[str, str]) -> None:
        """A second driver is refused, unless the first has ended meanwhile."""
        log = self._desk.directory / "second.log"
        code = self._desk.start(sweep, place.run, variables=variables, log=log).wait()
        assert code in (0, _REFUSED), log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()


def _fill(disk: Path, wait: Callable[[], None]) -> None:
    """No space, for a while."""
    with (
        (disk / "ballast").open("wb", buffering=0) as file,
        contextlib.suppress(OSError),
    ):
        while True:
            file.write(bytes(2**20))
    wait()
    (disk / "ballast").unlink()


def _lock(run: Path, wait: Callable[[], None]) -> None:
    """Whatever is opened by its path cannot be written, for a while. What is open
    stays so: its disk is busy."""
    subprocess.run(["mount", "--bind", run, run], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", run], check=True)
        wait()
    finally:
        subprocess.run(["umount", "--lazy", run], check=True)


@contextlib.contextmanager
def places(folder: Path, number: int) -> Iterator[Place]:
    """Where a run works: every third one on a disk, every third one on two nodes."""
    run, disk = f"run-{number}", folder / "disk"
    if number % 3 == 2 and os.geteuid() == 0:
        disk.mkdir(exist_ok=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", disk], check=True
        )
        try:
            yield Place(disk / run, disk=disk)
        finally:
            subprocess.run(["umount", "--lazy", disk], check=True)
    elif number % 3 == 0:
        with ray_cluster([(folder, _CPUS), (folder / "other", _CPUS)]) as nodes:
            yield Place(folder / run, nodes=nodes)
    else:
        print(
            "no full and no read-only disk: only root can mount one"
            * (number % 3 == 2),
            end="",
            flush=True,
        )
        yield Place(folder / run)


def chaos(desk: Desk, kills: int, seed: int) -> Chaos:
    """Run after run, until so many disturbances are done."""
    began, undisturbed = time.monotonic(), desk.directory / "undisturbed"
    desk.finish(desk.sweep(tasks=_TASKS), undisturbed)
    made = Chaos(desk, kills=kills, seed=seed, seconds=time.monotonic() - began)
    expected, rows, runs = tables(undisturbed), records(undisturbed), itertools.count(1)
    print(
        f"undisturbed: {len(rows)} records, {len(expected)} tables in"
        f" {time.monotonic() - began:.0f} s",
        flush=True,
    )
    while len(made.struck) < kills:
        with places(desk.directory, next(runs)) as place:
            made.run(place)
            check_same(place.run, rows)
            check_tables(place.run, expected)
        print(
            f"{place.run.name}: records and tables as undisturbed, none lost, none"
            " twice",
            flush=True,
        )
    return made


def night(desk: Night, kills: int, seed: int) -> Chaos:
    """The recipe `two_models` on two nodes, with random kills."""
    made = Chaos(desk, kills=kills, seed=seed, seconds=240.0, only=_AT_NIGHT)
    with places(desk.directory, 0) as place:
        made.run(place)
    told = check_story(place.run, made.struck, made.ended)
    print(
        f"{check_night(desk, place.run)} records of 12 checkpoints; events: {told}",
        flush=True,
    )
    return made


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--night", action="store_true")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(
        prefix="resurface-chaos-", ignore_cleanup_errors=True
    ) as name:
        folder, asked = Path(name), (given.kills, given.seed)
        made = (
            night(Night(folder), *asked) if given.night else chaos(Desk(folder), *asked)
        )
    for title, counted in (
        ("disturbed", Counter(name for _, name in made.struck)),
        ("commands that", made.ended),
    ):
        print(
            f"{title}: "
            + ", ".join(f"{name} {count}" for name, count in counted.most_common())
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
